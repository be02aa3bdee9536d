// Tile products of an fp8 cache. Bytes are converted to f16, exactly, between shared memory and mma.sync. QK^T may add the
// terms of head_dim in any order, so a thread uses the four adjacent elements that ldmatrix loads for it, and q has the same
// layout. A 16-bit column of V contains two dimensions, an even and an odd one, which belong to two blocks of the output or to
// both halves of one block. The factors of K multiply the scores, the factors of V the output. A row of q in bf16 is multiplied
// by a power of two to fit the range of f16, and the scores are divided by the same power.
#pragma once
#include "kernels/attention/decode/state.cuh"
#include "kernels/ptx/fp8.cuh"
#include "kernels/attention/q_transform.cuh"

namespace opfacade {

// The heads are the rows of the mma tile.
template <class C>
struct TileProducts<C, 1, false> {
  using State = DecodeState<C>;
  static constexpr int kChunks = C::kHeadDim / 16;

  static __device__ __forceinline__ void query(const State& state, int step, uint32_t (&q)[4]) {
    if constexpr (State::kQueryInShared) {
      // the fragment that this thread stored
      const uint4 fragment = load_shared_16(state.q_at + step * 512 + threadIdx.x % 32 * 16);
      q[0] = fragment.x, q[1] = fragment.y, q[2] = fragment.z, q[3] = fragment.w;
    } else {
      q[0] = state.q[step][0], q[1] = state.q[step][1], q[2] = state.q[step][2], q[3] = state.q[step][3];
    }
  }

  static __device__ __forceinline__ void scores(const State& state, uint32_t keys, TileScores<C>& s) {
    const uint32_t k = keys + swizzled<kChunks>(threadIdx.x % 32, 0);
#pragma unroll
    for (int n = 0; n < 4; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
#pragma unroll
    for (int step = 0; step < State::kSteps; ++step) {
      uint32_t key[4], q[4];
      query(state, step, q);
      ldmatrix_x4(key, k ^ (step * 16));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint2 wide = C::Kv::widen(key[n]);
        mma_16x8x16<F16>(s[n], q, wide.x, wide.y);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= state.factor[i / 2];
  }

  static __device__ __forceinline__ void add_values(State& state, const TileScores<C>& s, uint32_t values) {
    const uint32_t v = values + swizzled<kChunks>(threadIdx.x % 32, 0);
    uint32_t a[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) weights_of_rows<F16>(s[half * 2], s[half * 2 + 1], a[half]);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint32_t value[4];
      ldmatrix_x4_trans(value, v ^ (chunk * 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) value[i] = __byte_perm(value[i], 0, 0x3120);  // two adjacent tokens of one dimension
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t first = value[half * 2], second = value[half * 2 + 1];
        const uint2 upper = C::Kv::widen(first), lower = C::Kv::widen(second);
        mma_16x8x16<F16>(state.o[2 * chunk], a[half], upper.x, lower.x);
        mma_16x8x16<F16>(state.o[2 * chunk + 1], a[half], upper.y, lower.y);
      }
    }
  }

  static __device__ __forceinline__ void store_row(const State& state, int which, const ResultRow<C>& row) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const float* even = &state.o[2 * chunk][which * 2];
      const float* odd = &state.o[2 * chunk + 1][which * 2];
      row.template at<float4>(chunk * 16 + threadIdx.x % 4 * 4) = make_float4(even[0], odd[0], even[1], odd[1]);
    }
  }
};

// The heads are the columns of the mma tile.
template <class C>
struct TileProducts<C, 1, true> {
  using State = DecodeState<C>;
  static constexpr int kChunks = C::kHeadDim / 16;

  static __device__ __forceinline__ void scores(const State& state, uint32_t keys, TileScores<C>& s) {
    const uint32_t k = keys + swizzled<kChunks>(threadIdx.x % 32, 0);
    float part[2][2][4] = {};  // two accumulators shorten the dependency chain
#pragma unroll
    for (int step = 0; step < State::kSteps; ++step) {
      uint32_t key[4];
      ldmatrix_x4(key, k ^ (step * 16));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 upper = C::Kv::widen(key[half * 2]), lower = C::Kv::widen(key[half * 2 + 1]);
        const uint32_t a[4] = {upper.x, lower.x, upper.y, lower.y};
        mma_16x8x16<F16>(part[step % 2][half], a, state.q[step][0], state.q[step][1]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[half][i] = (part[0][half][i] + part[1][half][i]) * state.factor[i % 2];
  }

  static __device__ __forceinline__ void add_values(State& state, const TileScores<C>& s, uint32_t values) {
    const uint32_t v = values + swizzled<kChunks>(threadIdx.x % 32, 0);
    uint32_t b[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) weights_of_columns<F16>(s[half], b[half]);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint32_t value[4];
      ldmatrix_x4_trans(value, v ^ (chunk * 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) value[i] = __byte_perm(value[i], 0, 0x3120);  // two adjacent tokens of one dimension
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 upper = C::Kv::widen(value[half * 2]), lower = C::Kv::widen(value[half * 2 + 1]);
        const uint32_t a[4] = {upper.x, upper.y, lower.x, lower.y};
        mma_16x8x16<F16>(state.o[chunk], a, b[half][0], b[half][1]);
      }
    }
  }

  static __device__ __forceinline__ void store_row(const State& state, int which, const ResultRow<C>& row) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      row.template at<float2>(chunk * 16 + threadIdx.x % 32 / 4 * 2) =
          make_float2(state.o[chunk][State::Layout::at(which, 0)], state.o[chunk][State::Layout::at(which, 1)]);
  }
};

template <class C>
struct TileMath<C, 1> : TileProducts<C, 1> {
  using State = DecodeState<C>;
  static constexpr int kHeads = State::Layout::kQueryHeads;

  using Fragments = uint32_t[State::kSteps][2 * kHeads];

  static __device__ __forceinline__ void load_query(const DecodeParams& p, const WorkItem& item, State& state) {
    const float k_factor = p.k_scale == nullptr ? 1.f : p.k_scale[kv_head<C>(item) * p.kv_scale_stride];
    Fragments q;
    float factor[kHeads];
#pragma unroll
    for (int half = 0; half < kHeads; ++half) {
      const float top = load_row(p, item, half, q);
      factor[half] = k_factor * to_f16(q, half, top);
    }
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      state.factor[which] = factor[which % kHeads];
      // The lanes that hold scores of a head read its factor from a lane that loaded q of this head.
      if (kHeads == 1) state.factor[which] = __shfl_sync(0xffffffffu, factor[0], State::Layout::head(which) * 4);
    }
    keep(state, q);
  }

  // Loads one row of q and returns its largest absolute value.
  static __device__ __forceinline__ float load_row(const DecodeParams& p, const WorkItem& item, int half, Fragments& q) {
    const int lane = threadIdx.x % 32, row = lane / 4 + half * 8;
    const bool valid = row < num_rows<C>(item);
    const uint16_t* src = reinterpret_cast<const uint16_t*>(query_row<C>(p, item, valid ? row : 0)) + lane % 4 * 4;
    float top = 0.f;
#pragma unroll
    for (int i = 0; i < State::kSteps * 2; ++i) {
      const uint16_t* pair = src + i / 2 * 16 + i % 2 * 2;
      uint32_t bits = 0;
      if (valid) bits = p.q_aligned ? *reinterpret_cast<const uint32_t*>(pair) : pair[0] | uint32_t(pair[1]) << 16;
      bits = transformed_pair<typename C::T>(bits, p.score.q_transform);
      q[i / 2][i % 2 * kHeads + half] = bits;
      top = fmaxf(top, fmaxf(fabsf(C::T::unpack(bits & 0xffff)), fabsf(C::T::unpack(bits >> 16))));
    }
    return quad_max(top);
  }

  // Converts a row of q to f16 and returns the factor that undoes its scaling.
  static __device__ __forceinline__ float to_f16(Fragments& q, int half, float top) {
    if constexpr (C::kQueryIsF16) return 1.f;
    const int shift = f16_shift(top);
    const float up = power_of_two(shift);
#pragma unroll
    for (int step = 0; step < State::kSteps; ++step)
#pragma unroll
      for (int i = half; i < 2 * kHeads; i += kHeads)
        q[step][i] = f16_pair(q[step][i], up);
    return power_of_two(-shift);
  }

  static __device__ __forceinline__ void keep(State& state, const Fragments& q) {
#pragma unroll
    for (int step = 0; step < State::kSteps; ++step) {
      if constexpr (State::kQueryInShared) {
        const uint4 fragment = make_uint4(q[step][0], q[step][1], q[step][2], q[step][3]);
        store_shared_16(state.q_at + step * 512 + threadIdx.x % 32 * 16, fragment);
      } else {
#pragma unroll
        for (int i = 0; i < 2 * kHeads; ++i) state.q[step][i] = q[step][i];
      }
    }
  }
};

}  // namespace opfacade
