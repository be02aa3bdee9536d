// Asm text of products whose A is in registers, four words a k-step: see wgmma_registers.cuh and wgmma_kept.cuh.
#pragma once
#include "kernels/ptx/wgmma.cuh"

#define OPF_WGMMA_WORDS(W0, W1, W2, W3) "{" W0 ", " W1 ", " W2 ", " W3 "}"
#define OPF_WGMMA_FROM_REGISTERS(N, R, KIND, FLAGS, A0, A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12, A13, A14, A15,  \
                                 B_LOW, B_HIGH, B_STEP, X, ...)                                                        \
  OPF_WGMMA_BEGIN(X) OPF_WGMMA_STEPS("b", B_LOW, B_HIGH, B_STEP)                                                        \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A0, A1, A2, A3), "b0", "p", FLAGS)                                        \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A4, A5, A6, A7), "b1", "q", FLAGS)                                        \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A8, A9, A10, A11), "b2", "q", FLAGS)                                      \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A12, A13, A14, A15), "b3", "q", FLAGS) "}"
// The first two k-steps only.
#define OPF_WGMMA_FROM_REGISTERS_TWO(N, R, KIND, FLAGS, A0, A1, A2, A3, A4, A5, A6, A7, B_LOW, B_HIGH, B_STEP, X, ...)   \
  OPF_WGMMA_BEGIN(X) OPF_WGMMA_STEPS("b", B_LOW, B_HIGH, B_STEP)                                                        \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A0, A1, A2, A3), "b0", "p", FLAGS)                                        \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A4, A5, A6, A7), "b1", "q", FLAGS) "}"
// One k-step.
#define OPF_WGMMA_FROM_REGISTERS_ONE(N, R, KIND, FLAGS, A0, A1, A2, A3, B_LOW, B_HIGH, X, ...)                \
  "{\n.reg .b64 b;\n.reg .pred p;\nsetp.ne.b32 p, " X ", 0;\nmov.b64 b, {" B_LOW ", " B_HIGH "};\n"            \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A0, A1, A2, A3), "b", "p", FLAGS) "}"
#define OPF_R4_WORDS(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
