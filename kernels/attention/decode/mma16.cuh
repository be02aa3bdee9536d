// Tile products of f16 or bf16 elements: ldmatrix loads the operands of mma.sync.
#pragma once
#include "kernels/attention/decode/state.cuh"
#include "kernels/attention/q_transform.cuh"

namespace opfacade {

// The heads are the rows of the mma tile.
template <class C>
struct TileProducts<C, 2, false> {
  using State = DecodeState<C>;
  using T = typename C::T;

  static __device__ __forceinline__ void scores(const State& state, uint32_t keys, TileScores<C>& s) {
    const int lane = threadIdx.x % 32;
    const uint32_t k = keys + swizzled<C::kHeadDim / 8>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int n = 0; n < 2; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
#pragma unroll
    for (int step = 0; step < State::kSteps; ++step) {
      uint32_t key[4];
      ldmatrix_x4(key, k ^ (step * 32));
      mma_16x8x16<T>(s[0], state.q[step], key[0], key[1]);
      mma_16x8x16<T>(s[1], state.q[step], key[2], key[3]);
    }
  }

  static __device__ __forceinline__ void add_values(State& state, const TileScores<C>& s, uint32_t values) {
    const int lane = threadIdx.x % 32;
    const uint32_t v = values + swizzled<C::kHeadDim / 8>(lane % 16, lane / 16);
    uint32_t a[4];
    weights_of_rows<T>(s[0], s[1], a);
#pragma unroll
    for (int n = 0; n < State::kDimBlocks / 2; ++n) {
      uint32_t value[4];
      ldmatrix_x4_trans(value, v ^ (n * 32));
      mma_16x8x16<T>(state.o[2 * n], a, value[0], value[1]);
      mma_16x8x16<T>(state.o[2 * n + 1], a, value[2], value[3]);
    }
  }

  // Stores this thread's columns of one of its two heads.
  static __device__ __forceinline__ void store_row(const State& state, int which, const ResultRow<C>& row) {
#pragma unroll
    for (int n = 0; n < State::kDimBlocks; ++n)
      row.template at<float2>(n * 8 + threadIdx.x % 4 * 2) = make_float2(state.o[n][which * 2], state.o[n][which * 2 + 1]);
  }
};

// The heads are the columns of the mma tile.
template <class C>
struct TileProducts<C, 2, true> {
  using State = DecodeState<C>;
  using T = typename C::T;

  static __device__ __forceinline__ void scores(const State& state, uint32_t keys, TileScores<C>& s) {
    const int lane = threadIdx.x % 32;
    const uint32_t k = keys + swizzled<C::kHeadDim / 8>(lane % 16, lane / 16);
    float part[2][4] = {};  // two accumulators shorten the dependency chain
#pragma unroll
    for (int step = 0; step < State::kSteps; ++step) {
      uint32_t key[4];
      ldmatrix_x4(key, k ^ (step * 32));
      mma_16x8x16<T>(part[step % 2], key, state.q[step][0], state.q[step][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][i] = part[0][i] + part[1][i];
  }

  static __device__ __forceinline__ void add_values(State& state, const TileScores<C>& s, uint32_t values) {
    const int lane = threadIdx.x % 32;
    const uint32_t v = values + swizzled<C::kHeadDim / 8>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    uint32_t b[2];
    weights_of_columns<T>(s[0], b);
#pragma unroll
    for (int n = 0; n < State::kDimBlocks; ++n) {
      uint32_t value[4];
      ldmatrix_x4_trans(value, v ^ (n * 32));
      mma_16x8x16<T>(state.o[n], value, b[0], b[1]);
    }
  }

  static __device__ __forceinline__ void store_row(const State& state, int which, const ResultRow<C>& row) {
#pragma unroll
    for (int n = 0; n < State::kDimBlocks; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        row.template at<float>(n * 16 + State::Layout::along(j)) = state.o[n][State::Layout::at(which, j)];
  }
};

template <class C>
struct TileMath<C, 2> : TileProducts<C, 2> {
  using State = DecodeState<C>;

  static __device__ __forceinline__ void load_query(const DecodeParams& p, const WorkItem& item, State& state) {
    constexpr int kHeads = State::Layout::kQueryHeads;
    const int lane = threadIdx.x % 32;
    state.factor[0] = state.factor[1] = 1.f;
#pragma unroll
    for (int half = 0; half < kHeads; ++half) {
      const int row = lane / 4 + half * 8;
      const bool valid = row < num_rows<C>(item);
      const uint16_t* src = reinterpret_cast<const uint16_t*>(query_row<C>(p, item, valid ? row : 0)) + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < State::kSteps * 2; ++i) {
        const uint16_t* pair = src + i * 8;
        uint32_t bits = 0;
        if (valid) bits = p.q_aligned ? *reinterpret_cast<const uint32_t*>(pair) : pair[0] | uint32_t(pair[1]) << 16;
        state.q[i / 2][i % 2 * kHeads + half] = transformed_pair<typename C::T>(bits, p.score.q_transform);
      }
    }
  }
};

}  // namespace opfacade
