// Appends new rows to the paged pool. The append is a byte copy, independent of the dtype. It is memory-bound, so a warp takes
// several heads of a row of K and V, up to 128 bytes per lane, and issues their loads before the lookup: the request search,
// the page table access and the row loads overlap.
#pragma once
#include "kernels/kv_cache/place.cuh"

namespace opfacade {

template <int kBytes>
struct Bits;
template <>
struct Bits<1> {
  using Type = uint8_t;
};
template <>
struct Bits<2> {
  using Type = uint16_t;
};
template <>
struct Bits<4> {
  using Type = uint32_t;
};

// The work of a warp: some of the heads of one row.
struct Share {
  int row;
  int head;  // the first head
  int heads;
};

// Returns false if the row does not exist.
__device__ __forceinline__ bool find_share(const AppendParams& p, Share& share) {
  share.row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  share.head = blockIdx.y * p.heads_each;
  share.heads = min(p.heads_each, p.kv_heads - share.head);
  return share.row < p.total_rows;
}

// The address of the first head of a share in the new rows or in the pool; consecutive heads are head_stride bytes apart.
__device__ __forceinline__ const char* new_heads(const NewRows& rows, const Share& share) {
  return static_cast<const char*>(rows.data) + share.row * rows.row_stride + share.head * rows.head_stride;
}
__device__ __forceinline__ char* pool_heads(const PoolTensor& pool, const NewPlace& place, const Share& share) {
  return const_cast<char*>(token_address(pool, place.page, place.slot, share.head));
}

// The 16-byte chunks of one tensor in a lane: kMany of the kPerHead chunks of each head.
template <class C, class Piece>
struct HeldPieces {
  static constexpr int kPerHead = C::kHeadDim * C::kElemBytes / sizeof(Piece), kMany = 4, kStep = 32 * kMany;
  static constexpr bool kOnce = sizeof(Piece) == 16 && kPerHead <= kStep;  // see heads_of_a_warp
  Piece pieces[kMany];

  static __device__ __forceinline__ int index(int first, int j) { return first + j * 32 + threadIdx.x % 32; }

  __device__ __forceinline__ void load(const NewRows& rows, const Share& share, int first) {
    const char* src = new_heads(rows, share);
#pragma unroll
    for (int j = 0; j < kMany; ++j) {
      const int i = index(first, j);
      if (i < share.heads * kPerHead)
        pieces[j] = reinterpret_cast<const Piece*>(src + i / kPerHead * rows.head_stride)[i % kPerHead];
    }
  }

  template <class... Change>
  __device__ __forceinline__ void store(const PoolTensor& pool, const Share& share, int first, const NewPlace& place,
                                        const Change&...) const {
    char* dst = pool_heads(pool, place, share);
#pragma unroll
    for (int j = 0; j < kMany; ++j) {
      const int i = index(first, j);
      if (i < share.heads * kPerHead)
        reinterpret_cast<Piece*>(dst + i / kPerHead * pool.head_stride)[i % kPerHead] = pieces[j];
    }
  }
};

// Copies the heads of a warp after the first kStep.
template <class Held, class... To>
__device__ __forceinline__ void append_rest(Held& held, const NewRows& rows, const PoolTensor& pool, const Share& share,
                                            const To&... to) {
  if constexpr (!Held::kOnce) {
    for (int first = Held::kStep; first < share.heads * Held::kPerHead; first += Held::kStep) {
      held.load(rows, share, first);
      held.store(pool, share, first, to...);
    }
  }
}

template <class C, class Piece>
__device__ __forceinline__ void append_pieces(const AppendParams& p, const Share& share) {
  HeldPieces<C, Piece> k, v;
  k.load(p.k_new, share, 0);
  v.load(p.v_new, share, 0);
  NewPlace place;
  if (!find_place<C>(p, share.row, place)) return;
  k.store(p.k, share, 0, place);
  v.store(p.v, share, 0, place);
  append_rest(k, p.k_new, p.k, share, place);
  append_rest(v, p.v_new, p.v, share, place);
}

template <class C>
__device__ __forceinline__ void append(const AppendParams& p) {
  Share share;
  if (!find_share(p, share)) return;
  if (C::kHeadDim * C::kElemBytes % 16 == 0 && p.aligned) {
    append_pieces<C, uint4>(p, share);
  } else {
    append_pieces<C, typename Bits<C::kElemBytes>::Type>(p, share);
  }
}

}  // namespace opfacade
