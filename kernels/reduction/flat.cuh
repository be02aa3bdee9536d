// Many rows that begin anywhere, one behind the other. A CTA copies its rows to shared memory by whole vectors, and once what
// all rows have in common, such as a weight; lanes take theirs from there; results that are rows go back the same way, since
// one element of each lane would be a store of its own.
#pragma once
#include "kernels/ptx/cp_async.cuh"
#include "kernels/reduction/fold.cuh"

namespace opfacade {

// Bytes of a copy, and of shared memory beside the elements of an operand: they begin up to 15 bytes behind an aligned address,
// and a vector at their end is read whole, with the piece behind it.
constexpr int kFlatPiece = 16, kFlatBeside = 112;

// The rows of a CTA in shared memory, at the same distance from an aligned address as in the tensor.
struct FlatRows {
  char* in_tensor;  // its first byte
  int bytes, shift;
  unsigned char* in_shared;  // aligned; the first byte is `shift` later

  __device__ __forceinline__ FlatRows(char* first, int bytes, unsigned char* shared)
      : in_tensor(first), bytes(bytes), shift(static_cast<int>(reinterpret_cast<uintptr_t>(first) % kFlatPiece)), in_shared(shared) {}

  // whole(piece of the tensor, of shared memory) for those within the rows; rest(the same of an element) for what else there
  // is.
  template <int kSize, class W, class R>
  __device__ __forceinline__ void each(int thread, int threads, W whole, R rest) const {
    const int end = shift + bytes, first = shift == 0 ? 0 : 1, last = end / kFlatPiece;
    for (int i = first + thread; i < last; i += threads) whole(in_tensor + (i * kFlatPiece - shift), in_shared + i * kFlatPiece);
    const int head = min(end, first * kFlatPiece);  // elements before the first whole piece, and behind the last
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
  static constexpr int kStates = M::kThreads > 32 ? M::kRows * (M::kThreads / 32) * M::kRowStages * kStateBytes : 0;  // bytes

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
      if (M::flat_size(k) != 0) next += ((M::flat_once(k) ? 1 : p.ctas) * p.elements * M::flat_size(k) + kFlatBeside) / kFlatPiece * kFlatPiece;
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
    // Once where warps share a row: states of the next rows would lie where others still read.
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
  // The copies in place of the tensors.
  template <int kOperand>
  __device__ __forceinline__ void point(Params& here, At<kOperand>) const {
    if constexpr (kOperand < M::kOperands) {
      if constexpr (M::flat_size(kOperand) != 0) here.operand[kOperand] = shared[kOperand] + rows_of<kOperand>(0).shift;
      point(here, At<kOperand + 1>{});
    }
  }
};

}  // namespace opfacade
