// Appends new rows to the paged pool: a copy of bytes, whatever they mean. Bound by memory, so a warp takes several heads of
// a row, K and V, up to 128 bytes a lane, and asks for them before it looks up where they go: the search, the page table and
// the rows are on their way together.
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

// What a warp takes: some heads of one row.
struct Share {
  int row;
  int head;  // the first
  int heads;
};

// False if there is no such row.
__device__ __forceinline__ bool find_share(const AppendParams& p, Share& share) {
  share.row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  share.head = blockIdx.y * p.heads_each;
  share.heads = min(p.heads_each, p.kv_heads - share.head);
  return share.row < p.total_rows;
}

// The first of those heads, in the new rows and in the pool; others lie head_stride apart.
__device__ __forceinline__ const char* new_heads(const NewRows& rows, const Share& share) {
  return static_cast<const char*>(rows.data) + share.row * rows.row_stride + share.head * rows.head_stride;
}
__device__ __forceinline__ char* pool_heads(const PoolTensor& pool, const NewPlace& place, const Share& share) {
  return const_cast<char*>(token_address(pool, place.page, place.slot, share.head));
}

// A lane's pieces of one tensor, kMany of the kPerHead of each head.
template <class Piece, int kPerHead>
struct Held {
  static constexpr int kMany = 4;
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

  __device__ __forceinline__ void store(const PoolTensor& pool, const NewPlace& place, const Share& share, int first) const {
    char* dst = pool_heads(pool, place, share);
#pragma unroll
    for (int j = 0; j < kMany; ++j) {
      const int i = index(first, j);
      if (i < share.heads * kPerHead)
        reinterpret_cast<Piece*>(dst + i / kPerHead * pool.head_stride)[i % kPerHead] = pieces[j];
    }
  }
};

template <class C, class Piece>
__device__ __forceinline__ void append_pieces(const AppendParams& p, const Share& share) {
  constexpr int kPerHead = C::kHeadDim * C::kElemBytes / sizeof(Piece);
  using Pieces = Held<Piece, kPerHead>;
  constexpr bool kAtOnce = sizeof(Piece) == 16 && kPerHead <= 32 * Pieces::kMany;  // see heads_of_a_warp
  Pieces k, v;
  k.load(p.k_new, share, 0);
  v.load(p.v_new, share, 0);
  NewPlace place;
  if (!find_place<C>(p, share.row, place)) return;
  for (int first = 0;;) {
    k.store(p.k, place, share, first);
    v.store(p.v, place, share, first);
    first += 32 * Pieces::kMany;
    if (kAtOnce || first >= share.heads * kPerHead) return;
    k.load(p.k_new, share, first);
    v.load(p.v_new, share, first);
  }
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
