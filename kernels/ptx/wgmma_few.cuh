// Lists of four and eight accumulators, of products with 8 and 16 columns, for the macros of wgmma.cuh.
#pragma once

#define OPF_LIST_4 "%0, %1, %2, %3"
#define OPF_LIST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define OPF_OPERANDS_4(d, i) OPF_R4(d, i)
#define OPF_OPERANDS_8(d, i) OPF_R4(d, i), OPF_R4(d, i + 4)
#define OPF_AFTER_4 \
  "%4", "%5", "%6", "%7", "%8", "%9", "%10", "%11", "%12", "%13", "%14", \
  "%15", "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23", "%24"
#define OPF_AFTER_8 \
  "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15", "%16", "%17", "%18", \
  "%19", "%20", "%21", "%22", "%23", "%24", "%25", "%26", "%27", "%28"
