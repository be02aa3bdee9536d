"""Faults in products of codes of few bits: their words, scales and zero points, and the segments of k."""

from tests.mutation.mutant import cpu

K = "kernels/matmul"
CODES = "tests/families/matmul/test_codes_kernel.py"
NUMBERS = "code_numbers.cuh"
CODED = "tests/families/matmul/test_coded_kernel.py"
PAST_K = "numbers of elements, columns and rows past the end meet zeros or are not stored; only memory would tell"
TOGETHER = "the emulated producer loads the codes of a stage and its x without a pause, so that x is there where codes are"


def bytewise(name, old, new, tests):
    test = f"tests/families/matmul/test_codes_by_bytes_kernel.py -k {tests}"
    return cpu(f"products of codes and e4m3: {name}", f"{K}/coded/scaled.cuh", old, new, test)


def weights(name, old, new, tests, file="backends/reference/_matmul_weights.py"):
    return cpu(
        f"weights of few bits: {name}", f"opfacade/{file}", old, new, f"tests/families/matmul/test_weights.py -k {tests}"
    )


def codes(name, old, new, tests, file="codes.cuh"):
    return cpu(f"products of codes: {name}", f"{K}/{file}", old, new, f"{CODES} -k {tests}")


def coded(name, file, old, new, tests, **more):
    return cpu(f"products of codes in registers: {name}", f"{K}/coded/{file}", old, new, f"{CODED} -k {tests}", **more)


def copied(name, old, new, tests, **more):
    file, test = f"{K}/coded/copied.cuh", "tests/families/matmul/test_copied_codes.py"
    return cpu(f"products of copied codes: {name}", file, old, new, f"{test} -k {tests}", **more)


FAULTS = (
    weights("halves of a byte are exchanged", "(stored & 15, stored >> 4)", "(stored >> 4, stored & 15)", "lower_half"),
    weights("zero points are off by one", "found = found - zero\n", "found = found - zero - 1\n", "libraries"),
    weights("an offset into a group is lost", " + weight.group_offset) //", ") //", "libraries and 8"),
    weights("an element of no group has the nearest one", "made.masked_fill(_lost(weight, stored.groups, k)[:, None], 0.0)",
            "made", "nought"),
    weights("a global scale is lost", "if stored.whole is not None and not weight.scales_all:",
            "if weight.group is None and not weight.scales_all:", "mxfp4"),
    weights("numbers stay in f32", "found = found.to(torch_dtype(dtype))", "found = found.float()", "rounded_to"),
    weights("f16 rounds what it cannot hold", "problem.dtype == \"f16\" and wide", "problem.dtype == \"i8\" and wide",
            "contradict", "plans/_weights/weight.py"),
    codes("halves of a byte are exchanged", "word.x >> 4 * i & 15;", "word.x >> 4 * (i ^ 1) & 15;", "columns", NUMBERS),
    codes("a group is lost", "(k + 16 * i + p.group_offset) / (Q", "(16 * i + p.group_offset) / (Q", "columns"),
    codes("the offset of the first group is lost", "(k + 16 * i + p.group_offset)", "(k + 16 * i)", "bound and zeros"),
    codes("a zero point is off by one", "0x4b000000u | entry.zero", "0x4b000001u + entry.zero", "columns", NUMBERS),
    codes("a sign is lost", "word.x ^= 0x88888888u;", "word.x ^= 0u;", "columns and int4", NUMBERS),
    codes("elements past k have numbers", "if (kInside || 2 * j < rest) low = of", "low = of", "past_the_end", NUMBERS),
    codes("the second group of a chunk has the first scale", "entry[i * 8 / (kChunkCodes / kTables)]", "entry[0]",
          "of_e2m1 and e4m3"),
    codes("the exponent of e2m1 is not re-biased", "<< 22) * kOfE2m1", "<< 22) * (2.f * kOfE2m1)", "of_e2m1", NUMBERS),
    codes("the sign of e2m1 is lost", "(code & 8) << 28", "(code & 8) << 20", "of_e2m1", NUMBERS),
    codes("neighbours of e4m3 are exchanged", ">> 16 * (i % 2)", ">> 16 * (1 - i % 2)", "e4m3_arrives",
          NUMBERS),
    codes("the second vector of e4m3 is the first", "reinterpret_cast<const uint4*>(from + 16 * i)",
          "reinterpret_cast<const uint4*>(from)", "e4m3_arrives"),
    codes("a number has no second term", "behind[j] = rest_of(low, high, pair[j])", "behind[j] = 0", "arrive_whole",
          NUMBERS),
    codes("the second term is that of the first panel", "term * C::kPanels + panel", "panel", "arrive_whole", "chain.cuh"),
    codes("an element has the group of its neighbour", "p.weight_groups[first + i]",
          "p.weight_groups[first + (i ^ 1)]", "counts_as_0"),
    codes("an element of no group has the first scale", "static_cast<uint32_t>(group) >= static_cast<uint32_t>(p.num_groups)",
          "false && group < p.num_groups", "counts_as_0"),
    codes("an infinity has a rest", "(pair & 0x7f80u) == 0x7f80u ? 0.f : low - first", "low - first", "no_rest",
          NUMBERS),
    codes("a column's scale is lost", "sum0 *= of.factor[0], sum1 *= of.factor[1];", "", "e4m3_arrives",
          "../../csrc/matmul/_program.cu.jinja"),
    codes("the scale of the whole weight is lost", 'else "*p.weight_global") if global_sums', 'else "1.f") if global_sums',
          "bound and nvfp4", "../../csrc/matmul/_columns.cu.jinja"),
    codes("a stage is decoded before it is free", "mbarrier_wait(smem.empty(stage), at / C::kStages % 2 ^ 1);", "",
          "in_any_batch"),
    codes("the phase of a stage is stale", "at / C::kStages % 2 ^ 1", "1", "in_any_batch"),
    codes("numbers are not seen by products", "publish_writes(smem.full(stage))", "mbarrier_arrive(smem.full(stage))",
          "bound"),
    codes("chunks of the next tile are those of this", "now = later;", "", "in_any_batch"),
    coded("halves of a byte are exchanged", "decode.cuh", "byte * 0x1001u & both", "(byte >> 4 | byte << 16) & both",
          "columns"),
    coded("a thread has the byte of its neighbour", "decode.cuh", "threadIdx.x % 4 | 0x4440u",
          "(threadIdx.x % 4 ^ 1) | 0x4440u", "columns"),
    coded("a sign is lost", "decode.cuh", "(kMagic | kSign) * kTwice;", "kMagic * kTwice;", "columns and int4"),
    coded("a zero point is off by one", "decode.cuh", "kSign : entry.zero)", "kSign : entry.zero + 1)", "columns and uint4"),
    coded("a zero point in f32 is off by one", "decode.cuh", "(made - kBase - shift) * factor",
          "(made - kBase - shift - 1) * factor",
          "bound and f16"),
    coded("a group is lost", "decode.cuh", "tables.of(half, stage, k / kSlot)", "tables.of(half, stage, 0)", "columns"),
    coded("the offset of the first group is lost", "tables.cuh", "(k + p.group_offset) /", "k /", "bound and offset"),
    coded("tables of a stage are those of the first", "tables.cuh", "stage % kStages * kSlots + slot", "slot",
          "bound and zeros"),
    coded("tables of a window are those of the one before", "warps.cuh", "      tables.turn();\n      tables.ask(k",
          "      tables.ask(k", "columns"),
    coded("the second column has the tables of the first", "tables.cuh", "read(column + 8 * half,", "read(column,", "columns"),
    coded("a stage of codes is not waited for", "chain.cuh",
          "    codes_ring.wait_full(smem.codes_full(codes_ring.stage));\n    PanelCodes", "    PanelCodes",
          "run_before"),
    coded("a stage of x is not waited for", "chain.cuh",
          "kXPanels == 0) x_ring.wait_full(smem.x_full(x_ring.stage));", "kXPanels == 0) {}", "run_before",
          blind=TOGETHER),
    coded("the exponent of e2m1 is not re-biased", "decode.cuh", "0x7e80u) *", "0x7f00u) *", "of_e2m1"),
    coded("the sign of e2m1 is lost", "decode.cuh", "byte * 0x1001000u & 0x80008000u",
          "byte * 0x100100u & 0x80008000u", "of_e2m1"),
    coded("a step of sixteen has the scale of the one before", "decode.cuh", "panel * 64 + step * 16;",
          "panel * 64 + step / 2 * 32;",
          "of_e2m1"),
    coded("warps do not wait for codes", "chain.cuh",
          "    codes_ring.wait_full(smem.codes_full(codes_ring.stage));\n    x_ring.wait_full(smem.x",
          "    x_ring.wait_full(smem.x", "run_before", blind=TOGETHER),
    coded("warps have the second half of a step of x twice", "warps.cuh", "b[step / 2][step % 2 * 2 + 1]",
          "b[step / 2][step % 2 * 2]",
          "any_batch and 8"),
    coded("warps have the x of the step before", "warps.cuh", "4 * i + lane / 8)", "lane / 8)", "any_batch and 8"),
    coded("the second eight rows are the first", "warps.cuh", "rows * 1024 +", "", "any_batch and 16"),
    coded("warps add to the sums of the tile before", "warps.cuh", "sums[i] = 0.f;", "{}", "many_tiles"),
    coded("warps lose the last panels", "warps.cuh", "if (panel < panels) multiply_panel",
          "if (panel + 1 < panels) multiply_panel",
          "bound"),
    coded("CTAs aside have the same columns", "rings.cuh", "found.column += aside() * C::kColumns", "found.column += 0",
          "any_batch and shared"),
    coded("both load the first rows", "load.cuh", "tile.row + first, tile.batch", "tile.row, tile.batch",
          "any_batch and shared"),
    coded("rows are loaded for this CTA alone", "load.cuh", "((1 << C::kAside) - 1) <<", "(1 << CodedTiles<C>::aside()) <<",
          "any_batch and shared"),
    coded("rows of another segment are overwritten", "load.cuh", "rank(CodedTiles<C>::segment(), 0)", "rank(0, 0)",
          "any_batch and shared"),
    coded("a neighbour is not told that rows are read", "chain.cuh", "lane % C::kAside);", "CodedTiles<C>::aside());",
          "many_tiles"),
    coded("a neighbour's segment is added", "finish.cuh", "i / C::kAlong, CodedTiles<C>::aside()", "i / C::kAlong, 0",
          "any_batch and shared"),
    coded("the second round has the rows of the first", "kernel.cuh", "++round, tile.row += kRound", "++round",
          "any_batch and along"),
    coded("sums of the second round are those of the first", "kernel.cuh", "sums[i] = sums[i + kRound / 2];",
          "sums[i] = sums[i];",
          "any_batch and along"),
    coded("codes are loaded before the stage is free", "load.cuh",
          "    codes_ring.wait_empty(smem.codes_empty(codes_ring.stage));\n", "", "many_tiles"),
    bytewise("halves of a byte are exchanged", "t * 0x11 | (t + 1) * 0x1100", "t * 0x1100 | (t + 1) * 0x11",
             "columns and int4"),
    bytewise("codes of a neighbour are decoded", "threadIdx.x % 4 * 2, wide", "(threadIdx.x % 4 ^ 1) * 2, wide", "columns"),
    bytewise("minus eight is minus seven", "0x4a4c4e50u", "0x4a4c4e4eu", "columns and int4"),
    bytewise("the exponent of e2m1 is not re-biased", "0x3c383000u", "0x34302800u", "columns and e2m1"),
    bytewise("a group has the scale of the first", "(panel * 128 + part * kPart) / kPart", "part", "columns"),
    bytewise("columns have the scale of the other", "factors[i % 4 / 2]", "factors[i % 2]", "columns"),
    bytewise("sums of the part before are added twice", "part * kSteps + step, step > 0", "part * kSteps + step, true",
             "bound"),
    bytewise("parts have the x of the first", "rows, part * kSteps + step,", "rows, step,", "columns and 32"),
    bytewise("a panel has the codes of the first", "4 * panel + step", "step", "columns"),
    bytewise("parts before are lost", "fmaf(found[i], factors[i % 4 / 2].factor, sums[i])",
             "found[i] * factors[i % 4 / 2].factor", "bound"),
    coded("the next panel has the codes of this", "chain.cuh", "PanelCodes(line, panel + 1)", "PanelCodes(line, panel)",
          "columns"),
    coded("products are not waited for", "chain.cuh", "      wgmma_wait<0>();\n", "", "columns"),
    coded("the last panels of a segment are lost", "warps.cuh", "(segment.end - k + 63) / 64)", "(segment.end - k) / 128)",
          "bound"),
    copied("a stage is not waited for", "cp_async_wait<kStages - 2>();", ";", "bound or last_threads"),
    copied("threads do not wait for each other", "    named_sync(1 + smem.team, kWarpgroup);\n  }", "  }",
           "last_threads or many_tiles"),
    copied("a stage is overwritten while it is read", "slot = stage % kStages;\n    if", "slot = 0;\n    if", "bound"),
    copied("codes past the end of k are read", "column < p.columns && from < segment.end", "column < p.columns",
           "bound or any_batch", blind=PAST_K),
    copied("columns past the last are read", "column < p.columns &&", "true &&", "bound", blind=PAST_K),
    copied("rows past the last are read", "row >= 0 && from", "true && from", "bound", blind=PAST_K),
    copied("a segment has the first elements of k", "k = segment.begin + stage", "k = stage", "any_batch"),
    copied("the codes of a batch are those of the first", "tile.weight * p.weight.batch * kSize", "0", "bound"),
    copied("the rows of a batch are those of the first", "tile.batch * p.x.batch", "0", "bound"),
    copied("segments are not added", "found[i] : sums[i] + found[i]", "found[i] : found[i]", "any_batch"),
    copied("a tile begins before the one before is stored", "tile, segments.all);\n      __syncthreads();",
           "tile, segments.all);", "many_tiles or last_threads",
           blind="the emulator runs a thread to its next barrier, and a tile has several before its partial sums"),
    coded("sums of a segment begin with those of the last", "chain.cuh", "stage + panel > 0);", "true);", "in_any_batch"),
    coded("segments are added in another order", "finish.cuh", "i % C::kAlong), token)",
          "(segments - 1 - i) % C::kAlong), token)",
          "in_any_batch"),
    coded("the segments of another CTA are lost", "finish.cuh", "rank(i / C::kAlong, Coded", "rank(0, Coded",
          "in_any_batch"),
    coded("a team has the segment of the first", "rings.cuh", "CodedTiles<C>::segment() * C::kAlong + team,",
          "CodedTiles<C>::segment() * C::kAlong,",
          "in_any_batch"),
    coded("sums of a round do not move", "finish.cuh", "sums[i] = sums[i + kRound / 2];", "sums[i] = sums[i];", "in_any_batch"),
    coded("columns of the second warpgroup are those of the first", "finish.cuh", "tile.column + warpgroup * kCodesRows +",
          "tile.column +", "in_any_batch"),
    coded("partial sums are read before they are all there", "kernel.cuh",
          "    sync();\n    if (segments > 0)", "    if (segments > 0)", "run_before"),
)  # fmt: skip
