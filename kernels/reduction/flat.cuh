// Folds many rows that are contiguous but not aligned. A CTA copies its rows to shared memory by whole vectors; an input that
// all rows share, such as a weight, is copied once. Lanes read their elements from there. Outputs with a value per element are
// also written to shared memory and copied back by whole vectors: otherwise each lane would store single elements.
#pragma once
#include "kernels/ptx/cp_async.cuh"
#include "kernels/reduction/flat_params.h"
#include "kernels/reduction/fold.cuh"

namespace opfacade {

// The rows of a CTA in shared memory, at the same distance from an aligned address as in the tensor.
struct FlatRows {
  char* in_tensor;  // first byte of the rows
  int bytes, shift;
  unsigned char* in_shared;  // aligned; the rows begin `shift` bytes later

  __device__ __forceinline__ FlatRows(char* first, int bytes, unsigned char* shared)
      : in_tensor(first), bytes(bytes), shift(static_cast<int>(reinterpret_cast<uintptr_t>(first) % kFlatPiece)), in_shared(shared) {}

  // Calls whole(address in the tensor, address in shared memory) for each 16-byte piece that is completely inside the rows, and
  // rest(the same two addresses) for each element outside of these pieces.
  template <int kSize, class W, class R>
  __device__ __forceinline__ void each(int thread, int threads, W whole, R rest) const {
    const int end = shift + bytes, first = shift == 0 ? 0 : 1, last = end / kFlatPiece;
    for (int i = first + thread; i < last; i += threads) whole(in_tensor + (i * kFlatPiece - shift), in_shared + i * kFlatPiece);
    const int head = min(end, first * kFlatPiece);  // end of the elements before the first whole piece
#pragma unroll 1
    for (int at = shift + thread * kSize; at < head; at += threads * kSize) rest(in_tensor + (at - shift), in_shared + at);
    if (last < first) return;
#pragma unroll 1
    for (int at = last * kFlatPiece + thread * kSize; at < end; at += threads * kSize) rest(in_tensor + (at - shift), in_shared + at);
  }
};

template <class M>
struct FlatFold {
  using Params = typename M::Params;
  static constexpr int kThreads = M::kThreads * M::kRows;
  static constexpr int kStates = M::kSlots * kStateBytes;  // bytes

  const Params& p;
  const int64_t first;  // row
  const int rows, thread;
  unsigned char* shared[M::kOperands];

  __device__ __forceinline__ explicit FlatFold(const Params& params)
      : p(params), first(int64_t{blockIdx.x} * p.ctas), rows(static_cast<int>(min(int64_t{p.ctas}, p.rows - first))),
        thread(static_cast<int>(threadIdx.x)) {
    unsigned char* next = dynamic_shared() + kStates;
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) {
      shared[k] = next;
      if (M::flat_size(k) != 0) next += flat_bytes<int>(M::flat_once(k) ? 1 : p.ctas, p.elements, M::flat_size(k));
    }
  }

  __device__ __forceinline__ void run() {
    wait_for_previous();
    copy_in(At<0>{});
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    Params here = p;
    point(here, At<0>{});
    const int64_t valid = valid_rows(p);
    constexpr int kLanes = M::kThreads;
    // If several warps share a row, p.ctas is M::kRows and this loop runs once: a second iteration would overwrite states that
    // other warps still read.
#pragma unroll 1
    for (int row = 0; row < rows; row += M::kRows) {
      const int own = row + thread / kLanes;
      Fold<M, Lie::kFlat>(here, first + own, own, own < rows && first + own < valid).run();
    }
    if constexpr (M::kFullOutputs) __syncthreads();
    copy_out(min(int64_t{rows}, valid - first), At<M::kInputs>{});
  }

 private:
  template <int kOperand>
  __device__ __forceinline__ FlatRows rows_of(int64_t count) const {
    constexpr int kSize = M::flat_size(kOperand);
    char* const from = static_cast<char*>(p.operand[kOperand]) + first * p.stride[kOperand][0] * kSize;
    return FlatRows(from, static_cast<int>(count) * p.elements * kSize, shared[kOperand]);
  }
  template <int kOperand>
  __device__ __forceinline__ void copy_in(At<kOperand>) const {
    if constexpr (kOperand < M::kInputs) {
      constexpr int kSize = M::flat_size(kOperand);
      if constexpr (kSize != 0) {
        rows_of<kOperand>(M::flat_once(kOperand) ? 1 : rows).template each<kSize>(
            thread, kThreads, [](const char* from, unsigned char* to) { cp_async_16(smem_address(to), from, true); },
            [](const char* from, unsigned char* to) { copy_element<kSize>(to, from); });
      }
      copy_in(At<kOperand + 1>{});
    }
  }
  template <int kOperand>
  __device__ __forceinline__ void copy_out(int64_t count, At<kOperand>) const {
    if constexpr (kOperand < M::kOperands) {
      constexpr int kSize = M::flat_size(kOperand);
      if constexpr (kSize != 0) {
        rows_of<kOperand>(count < 0 ? 0 : count).template each<kSize>(
            thread, kThreads, [](char* to, const unsigned char* from) { store_vector(to, *reinterpret_cast<const uint4*>(from)); },
            [](char* to, const unsigned char* from) { copy_element<kSize>(to, from); });
      }
      copy_out(count, At<kOperand + 1>{});
    }
  }
  template <int kSize>
  __device__ __forceinline__ static void copy_element(void* to, const void* from) {
    if constexpr (kSize == 1) *static_cast<uint8_t*>(to) = *static_cast<const uint8_t*>(from);
    else if constexpr (kSize == 2) *static_cast<uint16_t*>(to) = *static_cast<const uint16_t*>(from);
    else if constexpr (kSize == 4) *static_cast<uint32_t*>(to) = *static_cast<const uint32_t*>(from);
    else *static_cast<uint64_t*>(to) = *static_cast<const uint64_t*>(from);
  }
  // Replaces the tensors' addresses by those of the copies.
  template <int kOperand>
  __device__ __forceinline__ void point(Params& here, At<kOperand>) const {
    if constexpr (kOperand < M::kOperands) {
      if constexpr (M::flat_size(kOperand) != 0) here.operand[kOperand] = shared[kOperand] + rows_of<kOperand>(0).shift;
      point(here, At<kOperand + 1>{});
    }
  }
};

}  // namespace opfacade
