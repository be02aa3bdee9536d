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

  // Scales of a byte, of which a thread has several, are bytes of a word: registers are few, and one exchange brings all of it.
  static constexpr bool kBytes = sizeof(ScaleBits) == 1 && Q::kZero == ZeroPoint::kNone && kHeld > 1;

  const MatmulParams& p;
  int batch, column;  // the first column; the second is eight further
  Entry now[2][kBytes ? 1 : kHeld], next[2][kHeld];
  uint32_t bytes[2];

  __device__ __forceinline__ CodeTables(const MatmulParams& of, const Tile& tile, int warpgroup) : p(of) { move(tile, warpgroup); }
  // Loads are of this tile from now on.
  __device__ __forceinline__ void move(const Tile& tile, int warpgroup) {
    batch = tile.weight, column = tile.column + warpgroup * kCodesRows + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
  }
  // Loads the tables of the window that begins with element k.
  __device__ __forceinline__ void ask(int k) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kHeld; ++i) next[half][i] = read(column + 8 * half, k + (static_cast<int>(threadIdx.x % 4) * kHeld + i) * Q::kSlot);
  }
  __device__ __forceinline__ void turn() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kBytes) bytes[half] = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if constexpr (kBytes) bytes[half] |= next[half][i].scale << 8 * i; else now[half][i] = next[half][i];
      }
    }
  }
  // Slot `slot` of stage `stage` of the segment, for a half of the columns.
  __device__ __forceinline__ Entry of(int half, int stage, int slot) const {
    if constexpr (Q::kSlot == 0) return now[half][0];
    const int from = (stage % kStages * kSlots + slot) / kHeld, lane = static_cast<int>(threadIdx.x % 32) / 4 * 4 + from;
    Entry found{0, 0};
    if constexpr (kBytes) {
      found.scale = static_cast<ScaleBits>(__shfl_sync(0xffffffffu, bytes[half], lane) >> slot % kHeld * 8);
      return found;
    }
    const Entry& own = now[half][kHeld > 1 && !kBytes ? slot % kHeld : 0];
    if constexpr (sizeof(ScaleBits) <= 2 && sizeof(ZeroBits) <= 2) {
      const uint32_t both = __shfl_sync(0xffffffffu, own.scale | static_cast<uint32_t>(own.zero) << 16, lane);
      found.scale = static_cast<ScaleBits>(both), found.zero = static_cast<ZeroBits>(both >> 16);
    } else {
      found.scale = static_cast<ScaleBits>(__shfl_sync(0xffffffffu, static_cast<uint32_t>(own.scale), lane));
      found.zero = static_cast<ZeroBits>(__shfl_sync(0xffffffffu, static_cast<uint32_t>(own.zero), lane));
    }
    return found;
  }

  // The tables of column `at` for element k.
  __device__ __forceinline__ Entry read(int at, int k) const {
    Entry found{0, 0};
    if (at >= p.columns || k >= p.k) return found;
    const int64_t group = Q::kSlot == 0 ? 0 : (k + p.group_offset) / (Q::kGroup == 0 ? 1 : Q::kGroup);
    found.scale = entry<ScaleBits>(p.weight_scale, at, group);
    if constexpr (Q::kZero != ZeroPoint::kNone) found.zero = entry<ZeroBits>(p.weight_zero, at, group);
    return found;
  }

 private:
  template <class Bits>
  __device__ __forceinline__ Bits entry(const MatmulScales& of, int at, int64_t group) const {
    return static_cast<const Bits*>(of.data)[batch * of.batch + at * of.row + group * of.part];
  }
};

}  // namespace opfacade
