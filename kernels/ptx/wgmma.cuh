// Asynchronous warpgroup products (wgmma, sm_90a) of 64 x N x 16 with f32 accumulators. Operands are in shared memory; A may be
// in registers (wgmma_registers.cuh). An operand consists of panels of 64 elements (128 bytes) a row. Eight rows form a
// 1024-byte block, aligned to 1024, in whose rows chunk c of 16 bytes is at c ^ row % 8; the stride between blocks is arbitrary
// but constant.
//
// Thread (warp w, g = lane / 4, t = lane % 4) holds rows 16 w + g and 16 w + g + 8. d[4 j + 2 h + e] is column 8 j + 2 t + e of
// row g + 8 h; a[2 c + h] packs columns 8 c + 2 t and + 1 of row g + 8 h. Packed accumulators of one product are the A operand
// of the next.
#pragma once
#include "kernels/ptx/dtype.cuh"

namespace opfacade {

// Matrix descriptor of an operand, as two words; only the low word contains the address.
struct Descriptor {
  uint32_t low;
  uint32_t high;
};
// groups: bytes between blocks of eight rows. across: bytes between panels, read only if B is transposed and wider than one
// panel.
__device__ __forceinline__ Descriptor panel_descriptor(uint32_t address, uint32_t groups, uint32_t across) {
  return {(across >> 4) << 16 | (address & 0x3ffffu) >> 4, 1u << 30 | groups >> 4};
}
// Descriptors of four consecutive k-steps, `bytes` apart: 32 for the next 16 elements of a row, 2 * groups for the next 16
// rows. The high word is constant, because the 14 address bits do not carry. The asm statement adds the steps, which saves
// compile time.
constexpr int kWgmmaSteps = 4;
struct Descriptors : Descriptor {
  uint32_t step;

  __device__ __forceinline__ Descriptors(Descriptor first, uint32_t bytes) : Descriptor(first), step(bytes >> 4) {}
};

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Waits for all products. ptxas hoists a wait above independent arithmetic of its basic block, which ends the overlap: put the
// wait behind a branch. kPlace makes each wait distinct, or the compiler merges them.
template <int kPlace>
__device__ __forceinline__ void wgmma_wait_all_at() {
  asm volatile("wgmma.wait_group.sync.aligned 0;  // place %0" ::"n"(kPlace) : "memory");
}

// Operand lists of eight or sixteen words; fewer statements save compile time.
#define OPF_EIGHT(K, x, i) K(x[i]), K(x[i + 1]), K(x[i + 2]), K(x[i + 3]), K(x[i + 4]), K(x[i + 5]), K(x[i + 6]), K(x[i + 7])
#define OPF_SIXTEEN(K, x, i) OPF_EIGHT(K, x, i), OPF_EIGHT(K, x, i + 8)
#define OPF_CHANGED_FLOAT(x) "+f"(x)
#define OPF_CHANGED_WORD(x) "+r"(x)
#define OPF_WORD(x) "r"(x)

// After a wait: the compiler may not move uses of these results above it. For other values: they are computed before this
// point.
template <int kCount>
__device__ __forceinline__ void pin(float (&x)[kCount]) {
  constexpr int kMany = kCount % 16 == 0 ? 16 : 1;
#pragma unroll
  for (int i = 0; i < kCount; i += kMany) {
    if constexpr (kMany == 1) {
      asm volatile("" : "+f"(x[i])::"memory");
    } else {
      asm volatile("" : OPF_SIXTEEN(OPF_CHANGED_FLOAT, x, i)::"memory");
    }
  }
}
template <int kCount>
__device__ __forceinline__ void pin(uint32_t (&x)[kCount]) {
  constexpr int kMany = kCount % 16 == 0 ? 16 : 1;
#pragma unroll
  for (int i = 0; i < kCount; i += kMany) {
    if constexpr (kMany == 1) {
      asm volatile("" : "+r"(x[i])::"memory");
    } else {
      asm volatile("" : OPF_SIXTEEN(OPF_CHANGED_WORD, x, i)::"memory");
    }
  }
}

// After a wait: operand registers may not be reused before it.
template <int kCount>
__device__ __forceinline__ void keep_alive(const uint32_t (&x)[kCount]) {
  static_assert(kCount % 8 == 0, "whole statements");
#pragma unroll
  for (int i = 0; i < kCount; i += 8) asm volatile("" ::OPF_EIGHT(OPF_WORD, x, i) : "memory");
}

// Four products in one asm statement: the accumulator list of a statement costs as much compile time as all else.
// ss: d = a * b^T or d += a * b^T; b has a row for each column of d.
// st: d += a * b; b has a row for each of 16 reduction elements. st_two: two products.
template <class T, int kColumns>
struct Wgmma;

#define OPF_LIST_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define OPF_LIST_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OPF_LIST_48 OPF_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define OPF_LIST_64 \
  OPF_LIST_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OPF_LIST_80 \
  OPF_LIST_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define OPF_LIST_96 \
  OPF_LIST_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OPF_LIST_112 \
  OPF_LIST_96 ", " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define OPF_LIST_128 \
  OPF_LIST_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define OPF_R4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OPF_R16(d, i) OPF_R4(d, i), OPF_R4(d, i + 4), OPF_R4(d, i + 8), OPF_R4(d, i + 12)
#define OPF_OPERANDS_16(d, i) OPF_R16(d, i)
#define OPF_OPERANDS_32(d, i) OPF_R16(d, i), OPF_R16(d, i + 16)
#define OPF_OPERANDS_48(d, i) OPF_OPERANDS_32(d, i), OPF_R16(d, i + 32)
#define OPF_OPERANDS_64(d, i) OPF_OPERANDS_32(d, i), OPF_OPERANDS_32(d, i + 32)
#define OPF_OPERANDS_80(d, i) OPF_OPERANDS_64(d, i), OPF_R16(d, i + 64)
#define OPF_OPERANDS_96(d, i) OPF_OPERANDS_64(d, i), OPF_OPERANDS_32(d, i + 64)
#define OPF_OPERANDS_112(d, i) OPF_OPERANDS_96(d, i), OPF_R16(d, i + 96)
#define OPF_OPERANDS_128(d, i) OPF_OPERANDS_64(d, i), OPF_OPERANDS_64(d, i + 64)

// Placeholders that follow the accumulators.
#define OPF_AFTER_16 \
  "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23", "%24", "%25", "%26", \
  "%27", "%28", "%29", "%30", "%31", "%32", "%33", "%34", "%35", "%36"
#define OPF_AFTER_32 \
  "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39", "%40", "%41", "%42", \
  "%43", "%44", "%45", "%46", "%47", "%48", "%49", "%50", "%51", "%52"
#define OPF_AFTER_48 \
  "%48", "%49", "%50", "%51", "%52", "%53", "%54", "%55", "%56", "%57", "%58", \
  "%59", "%60", "%61", "%62", "%63", "%64", "%65", "%66", "%67", "%68"
#define OPF_AFTER_64 \
  "%64", "%65", "%66", "%67", "%68", "%69", "%70", "%71", "%72", "%73", "%74", \
  "%75", "%76", "%77", "%78", "%79", "%80", "%81", "%82", "%83", "%84"
#define OPF_AFTER_80 \
  "%80", "%81", "%82", "%83", "%84", "%85", "%86", "%87", "%88", "%89", "%90", \
  "%91", "%92", "%93", "%94", "%95", "%96", "%97", "%98", "%99", "%100"
#define OPF_AFTER_96 \
  "%96", "%97", "%98", "%99", "%100", "%101", "%102", "%103", "%104", "%105", "%106", \
  "%107", "%108", "%109", "%110", "%111", "%112", "%113", "%114", "%115", "%116"
#define OPF_AFTER_112 \
  "%112", "%113", "%114", "%115", "%116", "%117", "%118", "%119", "%120", "%121", "%122", \
  "%123", "%124", "%125", "%126", "%127", "%128", "%129", "%130", "%131", "%132"
#define OPF_AFTER_128 \
  "%128", "%129", "%130", "%131", "%132", "%133", "%134", "%135", "%136", "%137", "%138", \
  "%139", "%140", "%141", "%142", "%143", "%144", "%145", "%146", "%147", "%148"
#define OPF_EXPAND(MACRO, ...) MACRO(__VA_ARGS__)

#define OPF_WGMMA_STEP(N, R, KIND, A, B, P, FLAGS) \
  "wgmma.mma_async.sync.aligned.m64n" #N KIND " {" OPF_LIST_##R "}, " A ", " B ", " P FLAGS ";\n"
// The four descriptors of an operand from a low word, a high word and a step.
#define OPF_WGMMA_STEPS(D, LOW, HIGH, STEP)                                                                             \
  ".reg .b64 " D "0, " D "1, " D "2, " D "3;\nmov.b64 " D "0, {" LOW ", " HIGH "};\n"                                   \
  "add.u32 t, " LOW ", " STEP ";\nmov.b64 " D "1, {t, " HIGH "};\nadd.u32 t, t, " STEP ";\nmov.b64 " D "2, {t, " HIGH "};\n" \
  "add.u32 t, t, " STEP ";\nmov.b64 " D "3, {t, " HIGH "};\n"
#define OPF_WGMMA_BEGIN(X) "{\n.reg .b32 t;\n.reg .pred p, q;\nsetp.ne.b32 p, " X ", 0;\nsetp.ne.b32 q, 1, 0;\n"
#define OPF_WGMMA_SHARED(N, R, KIND, P, FLAGS, A_LOW, A_HIGH, A_STEP, B_LOW, B_HIGH, B_STEP, X, ...)                      \
  OPF_WGMMA_BEGIN(X) OPF_WGMMA_STEPS("a", A_LOW, A_HIGH, A_STEP) OPF_WGMMA_STEPS("b", B_LOW, B_HIGH, B_STEP)            \
  OPF_WGMMA_STEP(N, R, KIND, "a0", "b0", P, FLAGS) OPF_WGMMA_STEP(N, R, KIND, "a1", "b1", "q", FLAGS)                   \
  OPF_WGMMA_STEP(N, R, KIND, "a2", "b2", "q", FLAGS) OPF_WGMMA_STEP(N, R, KIND, "a3", "b3", "q", FLAGS) "}"
// The first two k-steps only.
#define OPF_WGMMA_SHARED_TWO(N, R, KIND, P, FLAGS, A_LOW, A_HIGH, A_STEP, B_LOW, B_HIGH, B_STEP, X, ...)                  \
  OPF_WGMMA_BEGIN(X) OPF_WGMMA_STEPS("a", A_LOW, A_HIGH, A_STEP) OPF_WGMMA_STEPS("b", B_LOW, B_HIGH, B_STEP)            \
  OPF_WGMMA_STEP(N, R, KIND, "a0", "b0", P, FLAGS) OPF_WGMMA_STEP(N, R, KIND, "a1", "b1", "q", FLAGS) "}"
#define OPF_DESCRIPTORS(x) "r"(x.low), "r"(x.high), "r"(x.step)

#define OPF_WGMMA(T, NAME, N, R)                                                                                       \
  template <>                                                                                                          \
  struct Wgmma<T, N> {                                                                                                 \
    static __device__ __forceinline__ void ss(float (&d)[R], const Descriptors& a, const Descriptors& b, bool accumulate) { \
      asm volatile(OPF_EXPAND(OPF_WGMMA_SHARED, N, R, "k16.f32." NAME "." NAME, "p", ", 1, 1, 0, 0", OPF_AFTER_##R)    \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_DESCRIPTORS(a), OPF_DESCRIPTORS(b), "r"(static_cast<int>(accumulate)) \
                   : "memory");                                                                                        \
    }                                                                                                                  \
    static __device__ __forceinline__ void st(float (&d)[R], const Descriptors& a, const Descriptors& b) {             \
      asm volatile(OPF_EXPAND(OPF_WGMMA_SHARED, N, R, "k16.f32." NAME "." NAME, "q", ", 1, 1, 0, 1", OPF_AFTER_##R)    \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_DESCRIPTORS(a), OPF_DESCRIPTORS(b), "r"(1) : "memory");                                       \
    }                                                                                                                  \
    static __device__ __forceinline__ void st_two(float (&d)[R], const Descriptors& a, const Descriptors& b) {         \
      asm volatile(OPF_EXPAND(OPF_WGMMA_SHARED_TWO, N, R, "k16.f32." NAME "." NAME, "q", ", 1, 1, 0, 1", OPF_AFTER_##R) \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_DESCRIPTORS(a), OPF_DESCRIPTORS(b), "r"(1) : "memory");                                       \
    }                                                                                                                  \
  }

OPF_WGMMA(F16, "f16", 32, 16);
OPF_WGMMA(F16, "f16", 64, 32);
OPF_WGMMA(F16, "f16", 96, 48);
OPF_WGMMA(F16, "f16", 128, 64);
OPF_WGMMA(F16, "f16", 160, 80);
OPF_WGMMA(F16, "f16", 192, 96);
OPF_WGMMA(F16, "f16", 224, 112);
OPF_WGMMA(F16, "f16", 256, 128);
OPF_WGMMA(BF16, "bf16", 32, 16);
OPF_WGMMA(BF16, "bf16", 64, 32);
OPF_WGMMA(BF16, "bf16", 96, 48);
OPF_WGMMA(BF16, "bf16", 128, 64);
OPF_WGMMA(BF16, "bf16", 160, 80);
OPF_WGMMA(BF16, "bf16", 192, 96);
OPF_WGMMA(BF16, "bf16", 224, 112);
OPF_WGMMA(BF16, "bf16", 256, 128);

}  // namespace opfacade
