// Scales and zero points of the two columns that a thread decodes. The threads of a quad hold those of a stage or two together, each
// some, and read those of the next while they decode these.
#pragma once
#include "kernels/common/stored.cuh"
#include "kernels/matmul/code_kinds.cuh"
#include "kernels/matmul/coded/rings.cuh"

namespace opfacade {

// A config Q of codes, besides what codes.cuh says: kSlot elements of k, 16, 32, 64 or 128, lie in one group; 0: all of k do.
template <class C>
struct CodeTables {
  using Q = typename C::Codes;
  using ScaleBits = typename Stored<typename Q::Scale>::Bits;
  using ZeroBits = typename Stored<typename Q::Zero>::Bits;
  static constexpr int kSlots = Q::kSlot == 0 ? 1 : kCodesStep / Q::kSlot;                // of a stage
  static constexpr int kStages = kSlots < 4 ? 4 / kSlots : 1, kHeld = kSlots > 4 ? kSlots / 4 : 1;  // of a window; of a thread
  struct Entry {
    ScaleBits scale;
    ZeroBits zero;
  };

  const MatmulParams& p;
  int batch, column;  // the first column; the second is eight further
  Entry now[2][kHeld], next[2][kHeld];

  __device__ __forceinline__ CodeTables(const MatmulParams& of, const Tile& tile, int warpgroup)
      : p(of), batch(tile.weight), column(tile.column + warpgroup * kCodesRows + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4) {}
  // Loads the tables of the window that begins with element k.
  __device__ __forceinline__ void ask(int k) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kHeld; ++i) next[half][i] = read(column + 8 * half, k + (static_cast<int>(threadIdx.x % 4) * kHeld + i) * Q::kSlot);
  }
  __device__ __forceinline__ void turn() {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kHeld; ++i) now[half][i] = next[half][i];
  }
  // Slot `slot` of stage `stage` of the segment, for a half of the columns.
  __device__ __forceinline__ Entry of(int half, int stage, int slot) const {
    if constexpr (Q::kSlot == 0) return now[half][0];
    const int from = (stage % kStages * kSlots + slot) / kHeld, lane = static_cast<int>(threadIdx.x % 32) / 4 * 4 + from;
    const Entry& own = now[half][kHeld > 1 ? slot % kHeld : 0];
    Entry found;
    if constexpr (sizeof(ScaleBits) <= 2 && sizeof(ZeroBits) <= 2) {
      const uint32_t both = __shfl_sync(0xffffffffu, own.scale | static_cast<uint32_t>(own.zero) << 16, lane);
      found.scale = static_cast<ScaleBits>(both), found.zero = static_cast<ZeroBits>(both >> 16);
    } else {
      found.scale = static_cast<ScaleBits>(__shfl_sync(0xffffffffu, static_cast<uint32_t>(own.scale), lane));
      found.zero = static_cast<ZeroBits>(__shfl_sync(0xffffffffu, static_cast<uint32_t>(own.zero), lane));
    }
    return found;
  }

 private:
  __device__ __forceinline__ Entry read(int at, int k) const {
    Entry found{0, 0};
    if (at >= p.columns || k >= p.k) return found;
    const int64_t group = Q::kSlot == 0 ? 0 : (k + p.group_offset) / (Q::kGroup == 0 ? 1 : Q::kGroup);
    found.scale = entry<ScaleBits>(p.weight_scale, at, group);
    if constexpr (Q::kZero != ZeroPoint::kNone) found.zero = entry<ZeroBits>(p.weight_zero, at, group);
    return found;
  }
  template <class Bits>
  __device__ __forceinline__ Bits entry(const MatmulScales& of, int at, int64_t group) const {
    return static_cast<const Bits*>(of.data)[batch * of.batch + at * of.row + group * of.part];
  }
};

}  // namespace opfacade
