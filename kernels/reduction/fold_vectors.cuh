// A thread's vectors of its row, which are kept in registers or read again, and the row's constants and results.
#pragma once
#include "kernels/elementwise/map.cuh"
#include "kernels/reduction/fold_params.h"
#include "kernels/reduction/join.cuh"
#include "kernels/reduction/row.cuh"

namespace opfacade {

template <class M, Lie kLie>
struct FoldVectors {
  using Params = typename M::Params;
  using Row = FoldRow<M, kLie>;
  static constexpr bool kHeld = M::kHeld && (kLie == Lie::kWide || (kLie == Lie::kDense && M::kHeldIfDense));
  static constexpr int kSlots = kHeld ? M::kWaves * M::kPieces : 1;
  // kAhead, kFar: vectors of a thread that are loaded before the first is used, if a row is too long for registers.
  static constexpr int kInputBytes = sizeof(typename M::Inputs);
  static constexpr bool kStreams = !kHeld && (kLie == Lie::kWide || (kLie == Lie::kDense && !M::kHeld && (Row::kShifts || M::kStep > 1))) && !M::kSegmented;
  static constexpr int kAhead = !kStreams || kInputBytes > 32 ? 1 : kInputBytes > 16 ? 2 : 4;
  static constexpr int kFar = kAhead < 4 || M::kFar == 0 || M::kRun < M::kFar ? kAhead : M::kFar / (Row::kShifts ? 2 : 1);
  static constexpr int kAtOnce = M::kLanes * M::kVec;  // elements of one vector per lane

  const Params& p;
  Row row;
  typename M::Inputs held[kSlots];
  typename M::Constants constants{};
  typename M::Results results{};

  __device__ __forceinline__ explicit FoldVectors(const Params& params) : p(params), row(params) {}

  // A row in shared memory: see flat.cuh.
  __device__ __forceinline__ FoldVectors(const Params& params, int64_t number, int own, bool there)
      : p(params), row(params, number, own, there) {}
  // Lane `lane` of a row, whatever the CTA: for spread.cuh, which calls the functions below instead of `run`.
  __device__ __forceinline__ FoldVectors(const Params& params, int64_t number, int lane) : p(params), row(params, number, lane) {}

  __device__ __forceinline__ void begin() { constants = M::constants(p, row.at); }

  // Loads vectors that would touch memory outside their tensor again, element by element. Not unrolled, because few rows have
  // such vectors.
  __device__ __forceinline__ void mend_held() {
    static_assert(kSlots <= 32, "a bit each");
    uint32_t cut = 0;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int wave = slot / M::kPieces, piece = slot % M::kPieces;
      if (row.is_cut(wave, piece, row.count(wave, piece))) cut |= 1u << slot;
    }
#pragma unroll 1
    for (int slot = 0; cut != 0; ++slot, cut >>= 1) {
      if ((cut & 1) == 0) continue;
      const int wave = slot / M::kPieces, piece = slot % M::kPieces;
      typename M::Inputs found{};
      row.fetch_elements(found, wave, piece, row.count(wave, piece));
#pragma unroll
      for (int i = 0; i < kSlots; ++i)
        if (i == slot) M::replace(held[i], found);
    }
  }

  __device__ __forceinline__ int waves() const { return kHeld ? M::kWaves : (p.segments + Row::kAtOnce - 1) / Row::kAtOnce; }
  __device__ __forceinline__ int pieces() const {
    return kHeld ? M::kPieces : (p.elements + kAtOnce - 1) / kAtOnce;
  }
  // A row that is read again is cut into parts of kRun vectors per lane (if kRun > 0). Each part is folded separately, so the
  // bits do not depend on how many CTAs share the row. The next functions return the number of parts, and this CTA's range of
  // parts and of vectors.
  __device__ __forceinline__ int parts() const { return (pieces() + M::kRun - 1) / M::kRun; }
  __device__ __forceinline__ int part_of(int rank) const { return first_part(rank, parts(), p.ctas); }
  __device__ __forceinline__ int first_piece() const { return M::kRun == 0 ? 0 : part_of(row.rank) * M::kRun; }
  __device__ __forceinline__ int end_piece() const {
    return M::kRun == 0 ? pieces() : min(part_of(row.rank + 1) * M::kRun, pieces());
  }
  // Calls step(i) for each i < count; unrolled if the row is in registers.
  template <class F>
  __device__ __forceinline__ static void each(int count, F step) {
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < count; ++i) step(i);
    } else {
#pragma unroll 1
      for (int i = 0; i < count; ++i) step(i);
    }
  }
  // Calls step(index, number of valid elements) for each of this lane's vectors of a wave.
  template <class F>
  __device__ __forceinline__ void each_vector(int wave, F step) {
    if constexpr (M::kRun == 0) {
      each(pieces(), [&](int piece) { step(piece, row.count(wave, piece)); });
    } else {
#pragma unroll 1
      for (int piece = first_piece(); piece < end_piece(); ++piece) step(piece, row.count(wave, piece));
    }
  }
  __device__ __forceinline__ typename M::Inputs inputs(int wave, int piece, int count) {
    if constexpr (kHeld) return held[wave * M::kPieces + piece];
    typename M::Inputs in{};
    row.fetch(in, wave, piece, count);
    row.mend(in, wave, piece, count);
    return in;
  }
  __device__ __forceinline__ void fetch_late(int wave, int piece) {
    if (piece < M::kPieces) row.fetch_late(held[wave * M::kPieces + piece], wave, piece, row.count(wave, piece));
  }
  __device__ __forceinline__ void first_late(int wave) {
    if constexpr (kHeld) {
#pragma unroll
      for (int piece = 0; piece < M::kLateAhead; ++piece) fetch_late(wave, piece);
    }
  }
};

}  // namespace opfacade
