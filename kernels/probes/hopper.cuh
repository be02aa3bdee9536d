// Probes: one minimal kernel for each sm_90a wrapper of kernels/common, so that a wrong result identifies the wrapper.
#pragma once
#include "kernels/pipeline/ring.cuh"
#include "kernels/ptx/warpgroup.cuh"
#include "kernels/tile/transpose_bytes.cuh"
#include "kernels/ptx/wgmma_fp8.cuh"
#include "kernels/probes/hopper_params.h"

namespace opfacade {

// Stores row-major [rows, columns] 16-bit elements into panels, with ordinary stores.
__device__ __forceinline__ void stage_panels(uint32_t shared, const uint16_t* src, int rows, int columns) {
  for (int i = threadIdx.x; i < rows * columns / 2; i += blockDim.x) {
    const int row = i / (columns / 2), column = i % (columns / 2) * 2;
    const uint32_t at = column / 64 * rows * 128 + panel_address(row, column % 64 / 8) + column % 8 * 2;
    const uint32_t pair = src[row * columns + column] | uint32_t(src[row * columns + column + 1]) << 16;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared + at), "r"(pair) : "memory");
  }
  fence_async_shared();
  __syncthreads();
}

// Stores an accumulator fragment as row-major f32 c[64, n].
template <int kColumns>
__device__ __forceinline__ void unload(float* dst, const float (&d)[kColumns / 2]) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (int i = 0; i < kColumns / 2; ++i)
    dst[(warp * 16 + g + i % 4 / 2 * 8) * kColumns + i / 4 * 8 + t * 2 + i % 2] = d[i];
}

// a [64, 128], b [n, 128]: c = a * b^T.
template <class T, int kColumns>
__device__ __forceinline__ void probe_ss(const ProbeParams& p, uint32_t shared) {
  const uint32_t a = shared, b = shared + 64 * 256;
  stage_panels(a, static_cast<const uint16_t*>(p.a), 64, 128);
  stage_panels(b, static_cast<const uint16_t*>(p.b), kColumns, 128);
  float d[kColumns / 2];
  for (int i = 0; i < kColumns / 2; ++i) d[i] = 1e30f;  // the multiplication must overwrite it, not add to it
  wgmma_fence();
#pragma unroll
  for (int panel = 0; panel < 2; ++panel) {
    const Descriptors at_a(panel_descriptor(a + panel * 64 * 128, 1024, 0), 32);
    const Descriptors at_b(panel_descriptor(b + panel * kColumns * 128, 1024, 0), 32);
    Wgmma<T, kColumns>::ss(d, at_a, at_b, panel > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin(d);
  unload<kColumns>(static_cast<float*>(p.c), d);
}

// a [64, 64], b [64, n]: c = 1 + a * b with A in registers; with kTerms = 32, only the first 32 columns of a and rows of b.
template <class T, int kColumns, int kTerms = 64>
__device__ __forceinline__ void probe_rs(const ProbeParams& p, uint32_t shared) {
  stage_panels(shared, static_cast<const uint16_t*>(p.b), 64, kColumns);
  const uint16_t* a = static_cast<const uint16_t*>(p.a);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  uint32_t x[16];
  for (int i = 0; i < 16; ++i) {
    const uint16_t* at = a + (warp * 16 + g + i % 2 * 8) * 64 + i / 4 * 16 + i % 4 / 2 * 8 + t * 2;
    x[i] = at[0] | uint32_t(at[1]) << 16;
  }
  float d[kColumns / 2];
  for (int i = 0; i < kColumns / 2; ++i) d[i] = 1.f;
  wgmma_fence();
  const Descriptors at_b(panel_descriptor(shared, 1024, 64 * 128), 2048);
  if constexpr (kTerms == 64) WgmmaRegisters<T, kColumns>::rs(d, x, at_b, true); else WgmmaRegisters<T, kColumns>::rs_two(d, x, at_b);
  wgmma_commit();
  wgmma_wait<0>();
  pin(d);
  pin(x);
  unload<kColumns>(static_cast<float*>(p.c), d);
}

// Stores row-major rows of 128 bytes into panels of 128 elements.
__device__ __forceinline__ void stage_bytes(uint32_t shared, const void* src, int rows) {
  for (int i = threadIdx.x; i < rows * 8; i += blockDim.x)
    store_shared_16(shared + i / 64 * 1024 + panel_address(i / 8 % 8, i % 8), static_cast<const uint4*>(src)[i]);
  fence_async_shared();
  __syncthreads();
}

// a [64, 128], b [128, 128] of e4m3: c = a * b^T.
__device__ __forceinline__ void probe_ss_fp8(const ProbeParams& p, uint32_t shared) {
  const uint32_t a = shared, b = shared + 64 * 128;
  stage_bytes(a, p.a, 64);
  stage_bytes(b, p.b, 128);
  float d[64];
  for (int i = 0; i < 64; ++i) d[i] = 1e30f;  // the multiplication must overwrite it, not add to it
  wgmma_fence();
  Wgmma<E4M3, 128>::ss(d, Descriptors(panel_descriptor(a, 1024, 0), 32), Descriptors(panel_descriptor(b, 1024, 0), 32), false);
  wgmma_commit();
  wgmma_wait<0>();
  pin(d);
  unload<128>(static_cast<float*>(p.c), d);
}

// a [64, 128], b [128, 128] of e4m3: c = a * b with A in registers in accumulator order, and b transposed by all warps, which
// permutes columns too.
__device__ __forceinline__ void probe_rs_fp8(const ProbeParams& p, uint32_t shared) {
  const uint32_t from = shared, to = shared + 128 * 128;
  stage_bytes(from, p.b, 128);
  for (int columns = 0; columns < 128; columns += 16) {
    uint32_t w[4];
    load_transposed(w, read_place(from), threadIdx.x / 32 * 32, columns);
    store_transposed(w, write_place(to), threadIdx.x / 32 * 32, columns);
  }
  fence_async_shared();
  __syncthreads();
  const unsigned char* a = static_cast<const unsigned char*>(p.a);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  uint32_t x[16];
  for (int i = 0; i < 16; ++i) {
    const unsigned char* at = a + (warp * 16 + g + i % 2 * 8) * 128 + i / 2 * 16 + t * 2;
    x[i] = at[0] | at[1] << 8 | at[8] << 16 | uint32_t(at[9]) << 24;
  }
  float d[64];
  wgmma_fence();
  WgmmaRegisters<E4M3, 128>::rs(d, x, Descriptors(panel_descriptor(to, 1024, 0), 32), false);
  wgmma_commit();
  wgmma_wait<0>();
  pin(d);
  keep_alive(x);
  float* c = static_cast<float*>(p.c);
  for (int i = 0; i < 64; ++i)
    c[(warp * 16 + g + i % 4 / 2 * 8) * 128 + transposed_column(i / 4 * 8 + t * 2 + i % 2)] = d[i];
}

// Copies one TMA box of 64 x 16 elements through shared memory twice, so that phases wrap.
__device__ __forceinline__ void probe_tma(const ProbeParams& p, uint32_t shared) {
  const uint32_t barrier = shared + 4096;
  if (threadIdx.x == 0) mbarrier_init(barrier, 1), mbarrier_init_fence();
  __syncthreads();
  for (int phase = 0; phase < 5; ++phase) {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect(barrier, 2048);
      tma_load(shared, p.map, barrier, {{p.at[0], p.at[1], p.at[2], p.at[3], 0}});
    }
    mbarrier_wait(barrier, phase & 1);
    uint32_t* dst = static_cast<uint32_t*>(p.c);
    for (int i = threadIdx.x; i < 512; i += blockDim.x) {
      uint32_t word;
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(shared + i * 4) : "memory");
      dst[phase * 512 + i] = word;
    }
    __syncthreads();
  }
}

// Ring of two stages between one producer and two alternating consumer warpgroups; c[i] counts the values read.
__device__ __forceinline__ void probe_ring(const ProbeParams& p, uint32_t shared) {
  constexpr int kSteps = 23;
  const uint32_t full = shared, empty = shared + 16, data = shared + 64;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) mbarrier_init(full + 8 * s, 128), mbarrier_init(empty + 8 * s, 8);
    mbarrier_init_fence();
  }
  __syncthreads();
  Ring<2> ring;
  const int group = threadIdx.x / kWarpgroup, thread = threadIdx.x % kWarpgroup;
  if (group == 0) {
    release_registers<40>();
    for (int i = 0; i < kSteps; ++i, ring.advance()) {
      ring.wait_empty(empty + 8 * ring.stage);
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(data + (ring.stage * 128 + thread) * 4), "r"(i * 1000 + thread) : "memory");
      mbarrier_arrive(full + 8 * ring.stage);
    }
  } else {
    acquire_registers<232>();
    if (group == 1) named_arrive(1, 256);
    for (int i = 0; i < kSteps; ++i, ring.advance()) {
      ring.wait_full(full + 8 * ring.stage);
      named_sync(group, 256);
      int word;
      const uint32_t at = data + (ring.stage * 128 + 127 - thread) * 4;
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
      static_cast<int*>(p.c)[((group - 1) * kSteps + i) * 128 + thread] = word;
      named_arrive(3 - group, 256);
      if (thread % 32 == 0) mbarrier_arrive(empty + 8 * ring.stage);
    }
  }
}

}  // namespace opfacade
