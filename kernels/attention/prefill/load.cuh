// Loads Q once, and K and V tile by tile, into swizzled shared memory. The row addresses of a tile are resolved one tile ahead
// and stored in a double-buffered table, so that a 16-byte copy needs one shared load and one 64-bit addition.
#pragma once
#include "kernels/attention/prefill/variant.cuh"
#include "kernels/common/chunk.cuh"
#include "kernels/ptx/fp8.cuh"
#include "kernels/attention/q_transform.cuh"
#include "kernels/common/softmax.cuh"
#include "kernels/tile/swizzle.cuh"

namespace opfacade {

// For an fp8 cache: a raw tile of K or V, and the score factor of each row.
template <int kKvBytes, int kBytes, int kRows>
struct RawTile {};
template <int kBytes, int kRows>
struct RawTile<1, kBytes, kRows> {
  alignas(16) unsigned char bytes[kBytes];
  float factor[kRows];
};

template <class C>
struct PrefillSmem {
  static constexpr int kRowBytes = C::kHeadDim * 2;
  alignas(1024) unsigned char q[C::kTileRows * kRowBytes];
  alignas(1024) unsigned char k[C::kTileKv * kRowBytes];
  alignas(1024) unsigned char v[C::kTileKv * kRowBytes];
  const char* rows[2][2][C::kTileKv];  // [tile parity][K, V][token]
  RowTile tile;                        // reloaded after each barrier, because registers are scarcer than shared loads
  KvRange range;
  RawTile<C::kKvBytes, C::kTileKv * C::kHeadDim, C::kTileRows> raw;
};

// The parameters of keys, [tile parity][kKey][kTileKv], are stored after all other shared data.
template <class C>
__device__ __forceinline__ int32_t* key_table(PrefillSmem<C>& smem, int parity) {
  return reinterpret_cast<int32_t*>(&smem + 1) + parity * Variant<C>::kKey * C::kTileKv;
}

// `load` issues the copies of a tile. After their arrival, `land` stores the tile as mma operands: the thread that copied fp8
// bytes converts them to f16, exactly.
template <class C>
struct KvLoader {
  static constexpr int kChunks = C::kHeadDim / 8;
  static constexpr int kThreads = C::kWarps * 32;
  static_assert(kThreads == 2 * C::kTileKv, "one thread resolves one row of K or V");

  const PrefillParams& p;
  PrefillSmem<C>& smem;
  RequestPages<C::kTable, C::kPow2Pages, C::kSafePages> pages;
  int end;  // tokens from here on are filled with zeros, because 0 * NaN must not reach an accumulator

  __device__ __forceinline__ int token(int start) const { return start + threadIdx.x % C::kTileKv; }

  __device__ __forceinline__ int page(int start) const { return token(start) < end ? pages.page_of(token(start)) : 0; }

  __device__ __forceinline__ void resolve(int start, int page, int parity) const {
    const int which = threadIdx.x / C::kTileKv;
    const PoolTensor& pool = which == 0 ? p.k : p.v;
    const char* address = static_cast<const char*>(pool.data);
    if (token(start) < end) address = token_address(pool, page, pages.slot_of(token(start)), blockIdx.y);
    smem.rows[parity][which][threadIdx.x % C::kTileKv] = address;
    if constexpr (Variant<C>::kKey > 0) {
      const int key = threadIdx.x % C::kTileKv;
      if (which == 0 && token(start) < end)
        fetch_key_params<C>(p, key_table(smem, parity), key, page, pages.slot_of(token(start)));
    }
  }

  static constexpr int kRawChunks = C::kHeadDim / 16;
  __device__ __forceinline__ uint32_t raw_place(int i) const {
    return smem_address(smem.raw.bytes) + (i * kThreads + threadIdx.x) * 16;
  }
  __device__ __forceinline__ static int raw_row(int i) { return threadIdx.x / kRawChunks + i * (kThreads / kRawChunks); }

  __device__ __forceinline__ void load_raw(int which, int start, int parity) const {
#pragma unroll
    for (int i = 0; i < C::kTileKv * kRawChunks / kThreads; ++i)
      fetch_chunk<uint8_t>(raw_place(i), smem.rows[parity][which][raw_row(i)] + threadIdx.x % kRawChunks * 16,
                           start + raw_row(i) < end, p.kv_aligned);
    cp_async_commit();
  }
  __device__ __forceinline__ void land(int which) const {
    if constexpr (C::kKvBytes == 1) {
      const uint32_t dst = smem_address(which == 0 ? smem.k : smem.v);
#pragma unroll 1
      for (int i = 0; i < C::kTileKv * kRawChunks / kThreads; ++i) {
        uint4 wide[2];
        widen_16<typename C::Kv>(load_shared_16(raw_place(i)), wide);
#pragma unroll
        for (int part = 0; part < 2; ++part)
          store_shared_16(dst + swizzled<kChunks>(raw_row(i), threadIdx.x % kRawChunks * 2 + part), wide[part]);
      }
    }
  }

  __device__ __forceinline__ void load(int which, int start, int parity) const {
    if constexpr (C::kKvBytes == 1) return load_raw(which, start, parity);
    const uint32_t dst = smem_address(which == 0 ? smem.k : smem.v);
    const int chunk = threadIdx.x % kChunks;
    constexpr int kStep = kThreads / kChunks;
    if (p.kv_aligned) {
#pragma unroll
      for (int i = 0; i < C::kTileKv / kStep; ++i) {
        const int row = threadIdx.x / kChunks + i * kStep;
        cp_async_16(dst + swizzled<kChunks>(row, chunk), smem.rows[parity][which][row] + chunk * 16, start + row < end);
      }
    } else {
#pragma unroll 1
      for (int row = threadIdx.x / kChunks; row < C::kTileKv; row += kStep)
        fetch_chunk<uint16_t>(dst + swizzled<kChunks>(row, chunk), smem.rows[parity][which][row] + chunk * 16,
                              start + row < end, false);
    }
    cp_async_commit();
  }
};

// The byte offset of a packed row in a [rows, heads, dim] tensor.
template <class C>
__device__ __forceinline__ int64_t packed_offset(const RowTile& tile, int row, int64_t row_stride, int64_t head_stride) {
  const int packed = tile.first + row;
  return (tile.q_start + packed / C::kGroup) * row_stride + (blockIdx.y * C::kGroup + packed % C::kGroup) * head_stride;
}

template <class C>
__device__ __forceinline__ void load_q(const PrefillParams& p, PrefillSmem<C>& smem, const RowTile& tile) {
  constexpr int kChunks = C::kHeadDim / 8;
  constexpr int kStep = C::kWarps * 32 / kChunks;
  const int chunk = threadIdx.x % kChunks;
#pragma unroll 2
  for (int row = threadIdx.x / kChunks; row < C::kTileRows; row += kStep) {
    const bool valid = row < tile.rows;
    const int64_t offset = packed_offset<C>(tile, valid ? row : 0, p.q_row_stride, p.q_head_stride);
    fetch_chunk<uint16_t>(smem_address(smem.q) + swizzled<kChunks>(row, chunk),
                          static_cast<const char*>(p.q) + offset + chunk * 16, valid, p.q_aligned);
  }
  cp_async_commit();
}

template <class C>
__device__ __forceinline__ void transform_q(PrefillSmem<C>& smem, QTransform transform) {
  uint32_t* words = reinterpret_cast<uint32_t*>(smem.q);
#pragma unroll 1
  for (int i = threadIdx.x; i < sizeof(smem.q) / 4; i += C::kWarps * 32)
    words[i] = transformed_pair<typename C::Q>(words[i], transform);
}

// For an fp8 cache: computes the score factor of each row and converts bf16 to f16, one thread per row.
template <class C>
__device__ __forceinline__ void scale_q(const PrefillParams& p, PrefillSmem<C>& smem) {
  constexpr int kChunks = C::kHeadDim / 8;
  const float key = p.k_scale == nullptr ? 1.f : p.k_scale[blockIdx.y * p.kv_scale_stride];
#pragma unroll 1
  for (int row = threadIdx.x; row < C::kTileRows; row += C::kWarps * 32) {
    const auto word_at = [&](int i) {
      return reinterpret_cast<uint32_t*>(smem.q + swizzled<kChunks>(row, i / 4)) + i % 4;
    };
    int shift = 0;
    if constexpr (C::kNarrowQuery) {
      float top = 0.f;
#pragma unroll 4
      for (int i = 0; i < kChunks * 4; ++i) top = fmaxf(top, largest_of(*word_at(i)));
      shift = f16_shift(top);
#pragma unroll 4
      for (int i = 0; i < kChunks * 4; ++i) *word_at(i) = f16_pair(*word_at(i), power_of_two(shift));
    }
    smem.raw.factor[row] = never_zero(key * power_of_two(-shift));
  }
}

// Needs all rows of Q. The caller has a barrier before and after the call.
template <class C>
__device__ __forceinline__ void prepare_q(const PrefillParams& p, PrefillSmem<C>& smem) {
  if (p.score.q_transform != QTransform::kNone) transform_q<C>(smem, p.score.q_transform);
  if constexpr (C::kKvBytes == 1) {
    __syncthreads();
    scale_q<C>(p, smem);
  }
}

// Applies the query expression and rounds back to the query type. Padding rows change too, but no code reads them.
template <class C>
__device__ __forceinline__ void vary_q(const PrefillParams& p, PrefillSmem<C>& smem) {
  constexpr int kRowWords = PrefillSmem<C>::kRowBytes / 4;
  uint32_t* words = reinterpret_cast<uint32_t*>(smem.q);
#pragma unroll 1
  for (int i = threadIdx.x; i < C::kTileRows * kRowWords; i += C::kWarps * 32) {
    words[i] = varied_pair<C>(words[i], variant_row<C>(p, smem.tile, blockIdx.y, i / kRowWords));
  }
}

}  // namespace opfacade
