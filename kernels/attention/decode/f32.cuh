// Decode in full f32 with fused multiply-adds from shared memory, because tf32 tensor cores would drop 13 bits. It shares the
// schedule, the partials and the merge with decode/kernel.cuh. The CTA processes tiles of kTileKv tokens, one key per lane.
#pragma once
#include "kernels/attention/decode/schedule/join.cuh"
#include "kernels/common/softmax.cuh"

namespace opfacade {

template <class C>
struct F32Smem {
  static constexpr int kPitch = C::kHeadDim + 4;  // pads rows so that 16-byte reads of adjacent rows use different banks
  alignas(16) float k[C::kStages][C::kTileKv][kPitch];
  alignas(16) float v[C::kStages][C::kTileKv][kPitch];
  alignas(16) float q[C::kRows][kPitch];
  alignas(16) float weights[C::kRows][C::kTileKv + 4];  // the weights of a tile, then the rescaling factor of the row

  __device__ __forceinline__ volatile int& scratch() { return *reinterpret_cast<int*>(&weights[0][C::kTileKv + 1]); }
};

template <class C>
struct F32State {
  static constexpr int kThreads = C::kWarps * 32;
  static constexpr int kWarpRows = (C::kRows + C::kWarps - 1) / C::kWarps;
  static constexpr int kColumns = (C::kHeadDim + kThreads - 1) / kThreads;
  float o[C::kRows][kColumns];  // this thread's columns: threadIdx.x, threadIdx.x + kThreads, ...
  float max[kWarpRows];         // rows warp, warp + kWarps, ...; every lane has the same values
  float sum[kWarpRows];
};

template <class C>
__device__ __forceinline__ void fetch_f32(const DecodeParams& p, const WorkItem& item, F32Smem<C>& smem, int start,
                                          int stage) {
  const RequestPages<C::kTable, C::kPow2Pages, C::kSafePages> pages(p.table, item.request);
  constexpr int kChunks = C::kHeadDim / 4;
#pragma unroll 2
  for (int i = threadIdx.x; i < 2 * C::kTileKv * kChunks; i += C::kWarps * 32) {
    const int chunk = i % kChunks, row = i / kChunks % C::kTileKv, token = start + row;
    const bool values = i >= C::kTileKv * kChunks, valid = token >= item.first_key && token < item.end;
    const PoolTensor& pool = values ? p.v : p.k;
    const char* src = static_cast<const char*>(pool.data);
    if (valid) src = token_address(pool, pages.page_of(token), pages.slot_of(token), kv_head<C>(item)) + chunk * 16;
    float* dst = values ? smem.v[stage][row] : smem.k[stage][row];
    fetch_chunk<uint32_t>(smem_address(dst + chunk * 4), src, valid, p.kv_aligned);
  }
  cp_async_commit();
}

template <class C>
__device__ __forceinline__ void load_query_f32(const DecodeParams& p, const WorkItem& item, F32Smem<C>& smem) {
  for (int i = threadIdx.x; i < C::kRows * C::kHeadDim; i += C::kWarps * 32) {
    const int row = i / C::kHeadDim, column = i % C::kHeadDim;
    const bool valid = row < num_rows<C>(item);
    float x = valid ? reinterpret_cast<const float*>(query_row<C>(p, item, row))[column] : 0.f;
    if (p.score.q_transform == QTransform::kNegate) x = -x;
    if (p.score.q_transform == QTransform::kZero) x *= 0.f;
    smem.q[row][column] = x;
  }
}

template <class C>
__device__ __forceinline__ float score_f32(const DecodeParams& p, const WorkItem& item, const F32Smem<C>& smem, int row,
                                           int stage, int start) {
  const int lane = threadIdx.x % 32, slot = min(lane, C::kTileKv - 1);
  float s[4] = {};
#pragma unroll 8
  for (int i = 0; i < C::kHeadDim; i += 4) {
    const float4 q = *reinterpret_cast<const float4*>(&smem.q[row][i]);
    const float4 k = *reinterpret_cast<const float4*>(&smem.k[stage][slot][i]);
    s[0] = fmaf(q.x, k.x, s[0]), s[1] = fmaf(q.y, k.y, s[1]), s[2] = fmaf(q.z, k.z, s[2]), s[3] = fmaf(q.w, k.w, s[3]);
  }
  float score = (s[0] + s[1]) + (s[2] + s[3]);
  if constexpr (C::kSoftCap) score = tanhf(score * p.score.cap_in);
  const int key = start + lane;
  return lane >= C::kTileKv || key < item.first_key || key >= item.end ? minus_infinity() : score;
}

template <class C>
__device__ __forceinline__ void weigh_f32(const DecodeParams& p, const WorkItem& item, F32Smem<C>& smem, int stage,
                                          int start, F32State<C>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < F32State<C>::kWarpRows; ++i) {
    const int row = threadIdx.x / 32 + i * C::kWarps;
    if (row >= C::kRows) break;
    const float score = score_f32<C>(p, item, smem, row, stage, start);
    const float row_max = fmaxf(state.max[i], warp_max(score));
    const float base = finite_max(row_max);
    const float weight = exp2f((score - base) * p.score.log2_scale);
    const float rescale = exp2f((state.max[i] - base) * p.score.log2_scale);
    state.max[i] = row_max;
    state.sum[i] = state.sum[i] * rescale + warp_sum(weight);
    if (lane < C::kTileKv) smem.weights[row][lane] = weight;
    if (lane == 0) smem.weights[row][C::kTileKv] = rescale;
  }
}

template <class C>
__device__ __forceinline__ void add_values_f32(const F32Smem<C>& smem, int stage, F32State<C>& state) {
  static_assert(C::kTileKv <= 32, "one lane a key");
#pragma unroll
  for (int c = 0; c < F32State<C>::kColumns; ++c) {
    const int column = threadIdx.x + c * F32State<C>::kThreads;
    if (column >= C::kHeadDim) break;
#pragma unroll
    for (int row = 0; row < C::kRows; ++row) state.o[row][c] *= smem.weights[row][C::kTileKv];
#pragma unroll 1
    for (int key = 0; key < C::kTileKv; key += 4) {
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = smem.v[stage][key + i][column];
#pragma unroll
      for (int row = 0; row < C::kRows; ++row) {
        const float4 w = *reinterpret_cast<const float4*>(&smem.weights[row][key]);
        state.o[row][c] = fmaf(w.w, v[3], fmaf(w.z, v[2], fmaf(w.y, v[1], fmaf(w.x, v[0], state.o[row][c]))));
      }
    }
  }
}

// Stores the normalised rows and their lse in shared memory, then writes both to global memory.
template <class C>
__device__ __forceinline__ void finish_f32(const DecodeParams& p, const GlobalRows<C>& rows, F32Smem<C>& smem,
                                           F32State<C>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < F32State<C>::kWarpRows; ++i) {
    const int row = threadIdx.x / 32 + i * C::kWarps;
    if (row >= C::kRows || lane != 0) break;
    smem.weights[row][0] = reciprocal_or_zero(state.sum[i]);
    smem.weights[row][1] = row_lse(state.max[i], state.sum[i], p.score.scale);
  }
  __syncthreads();
#pragma unroll
  for (int row = 0; row < C::kRows; ++row)
#pragma unroll
    for (int c = 0; c < F32State<C>::kColumns; ++c) {
      const int column = threadIdx.x + c * F32State<C>::kThreads;
      if (column < C::kHeadDim) smem.q[row][column] = state.o[row][c] * smem.weights[row][0];
    }
  __syncthreads();
  constexpr int kChunks = C::kHeadDim / 4;
  for (int i = threadIdx.x; i < num_rows<C>(rows.item) * kChunks; i += C::kWarps * 32) {
    const int row = i / kChunks, column = i % kChunks * 4;
    rows.store(row, column, *reinterpret_cast<const float4*>(&smem.q[row][column]), 1.f, smem.weights[row][1]);
  }
}

template <class C>
__device__ __forceinline__ void reset_f32(F32State<C>& state) {
#pragma unroll
  for (int row = 0; row < C::kRows; ++row)
#pragma unroll
    for (int c = 0; c < F32State<C>::kColumns; ++c) state.o[row][c] = 0.f;
#pragma unroll
  for (int i = 0; i < F32State<C>::kWarpRows; ++i) state.max[i] = minus_infinity(), state.sum[i] = 0.f;
}

template <class C>
__device__ __forceinline__ void attend_f32(const DecodeParams& p, const WorkItem& item, F32Smem<C>& smem, F32State<C>& state) {
  load_query_f32<C>(p, item, smem);
  if (item.begin < item.end) fetch_f32<C>(p, item, smem, item.begin, 0);
  int stage = 0;
#pragma unroll 1
  for (int start = item.begin; start < item.end; start += C::kTileKv, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // this stage has arrived; the other stage and the weights may be overwritten
    if (start + C::kTileKv < item.end) fetch_f32<C>(p, item, smem, start + C::kTileKv, stage ^ 1);
    weigh_f32<C>(p, item, smem, stage, start, state);
    __syncthreads();
    add_values_f32<C>(smem, stage, state);
  }
  __syncthreads();
}

template <class C>
__device__ __forceinline__ void decode_f32(const DecodeParams& p) {
  kernel_prologue(p);
  F32Smem<C>& smem = *reinterpret_cast<F32Smem<C>*>(dynamic_shared());
  static_assert(sizeof(smem) == C::kSharedBytes, "the launch has another layout");
  Schedule<C, C::kSplit> schedule(p);
  WorkItem item;
  while (schedule.next(item)) {
    F32State<C> state;
    reset_f32<C>(state);
    attend_f32<C>(p, item, smem, state);
    const Partials partials = schedule.partials_of(item);
    const GlobalRows<C> rows{p, item, partials};
    finish_f32<C>(p, rows, smem, state);
    __syncthreads();  // the partial is stored and the rows have been read
    if (C::kPartial && partials.count > 1) merge_if_last<C>(rows, smem.scratch());
  }
}

}  // namespace opfacade
