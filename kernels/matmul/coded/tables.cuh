// Scales and zero points of the two columns that a thread decodes. The threads of a quad share the tables of a window, which
// has one or more stages: each thread holds a part of them, and loads its part of the next window while the current one is
// decoded.
#pragma once
#include "kernels/common/stored.cuh"
#include "kernels/matmul/code_kinds.cuh"
#include "kernels/matmul/coded/rings.cuh"

namespace opfacade {

// A config Q of codes, in addition to codes.cuh. kSlot: 16, 32, 64 or 128 consecutive elements of k that are in one group; 0:
// all of k is one group.
template <class C>
struct CodeTables {
  using Q = typename C::Codes;
  using ScaleBits = typename Stored<typename Q::Scale>::Bits;
  using ZeroBits = typename Stored<typename Q::Zero>::Bits;
  static constexpr int kSlots = Q::kSlot == 0 ? 1 : kCodesStep / Q::kSlot;                // slots per stage
  // kStages: stages per window. kHeld: slots per thread.
  static constexpr int kStages = kSlots < 4 ? 4 / kSlots : 1, kHeld = kSlots > 4 ? kSlots / 4 : 1;
  struct Entry {
    ScaleBits scale;
    ZeroBits zero;
  };

  // If a thread holds several scales of one byte, they are packed in a word: this needs fewer registers and one shuffle for
  // all.
  static constexpr bool kBytes = sizeof(ScaleBits) == 1 && Q::kZero == ZeroPoint::kNone && kHeld > 1;

  const MatmulParams& p;
  int batch, column;  // first column of the thread; its second column is `column` + 8
  Entry now[2][kBytes ? 1 : kHeld], next[2][kHeld];
  uint32_t bytes[2];

  __device__ __forceinline__ CodeTables(const MatmulParams& of, const Tile& tile, int warpgroup) : p(of) { move(tile, warpgroup); }
  // Sets the tile of all later loads.
  __device__ __forceinline__ void move(const Tile& tile, int warpgroup) {
    batch = tile.weight, column = tile.column + warpgroup * kCodesRows + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
  }
  // Loads the tables of the window that begins at element k.
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
  // The table entry of slot `slot` of stage `stage` of the segment. half: 0 for the first column of the thread, 1 for the
  // second.
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

  // Loads the table entry of column `at` and element k.
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
