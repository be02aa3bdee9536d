// What does the sum of a split product over a cluster cost? A CTA streams its part of 64 rows of weights, then partial results
// [m, 64] in f32 are summed through distributed shared memory in the order of the ranks, or (mode 0) not at all.
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
namespace cg = cooperative_groups;
// mode 0: each CTA writes its share of its own part; 1: sum through distributed shared memory.
template <int kSplit>
__global__ void __launch_bounds__(256) skinny(const uint4* w, float* out, int m, int k, int mode) {
  extern __shared__ float part[];
  const int rank = blockIdx.x % kSplit, tile = blockIdx.x / kSplit, share = k / 8 / kSplit;  // 16-byte vectors of a row
  uint32_t acc = 0;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int row = warp * 8; row < warp * 8 + 8; row += 4) {
    const uint4* from = w + (int64_t(tile) * 64 + row) * (k / 8) + rank * share;
#pragma unroll 2
    for (int at = lane; at < share; at += 64) {
      uint4 v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = at + i / 4 * 32 < share ? __ldcs(from + i % 4 * (k / 8) + at + i / 4 * 32) : uint4{};
#pragma unroll
      for (int i = 0; i < 8; ++i) acc ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
  }
  const int count = m * 64;
  for (int i = threadIdx.x; i < count; i += 256) part[i] = __uint_as_float(acc & 0x3fffffffu) + i;
  const int mine = (count + kSplit - 1) / kSplit, begin = rank * mine, end = min(count, begin + mine);
  if (mode == 1) {
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();
    for (int i = begin + threadIdx.x; i < end; i += 256) {
      float sum = 0.f;
#pragma unroll
      for (int r = 0; r < kSplit; ++r) sum += *cluster.map_shared_rank(part + i, r);
      out[int64_t(tile) * 64 * m + i] = sum;
    }
    cluster.sync();
  } else {
    __syncthreads();
    for (int i = begin + threadIdx.x; i < end; i += 256) out[int64_t(tile) * 64 * m + i] = part[i];
  }
}
template <int kSplit> void launch(const uint4* w, float* out, int m, int n, int k, int mode, int cluster) {
  cudaLaunchConfig_t c = {};
  c.gridDim = n / 64 * kSplit; c.blockDim = 256; c.dynamicSmemBytes = 64 * 64 * 4;
  cudaLaunchAttribute a[1];
  a[0].id = cudaLaunchAttributeClusterDimension; a[0].val.clusterDim.x = cluster; a[0].val.clusterDim.y = a[0].val.clusterDim.z = 1;
  c.attrs = a; c.numAttrs = 1; c.stream = cudaStreamPerThread;
  cudaLaunchKernelEx(&c, skinny<kSplit>, w, out, m, k, mode);
}
float timed(int split, int m, int n, int k, int mode, int cluster, char* w, size_t bytes, float* out) {
  const size_t one = size_t(n) * k * 2, room = bytes / one;
  const int runs = 40;
  cudaStream_t s = cudaStreamPerThread;
  cudaGraph_t graph; cudaGraphExec_t exec;
  cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < runs; ++i) {
    const uint4* at = reinterpret_cast<const uint4*>(w + i % room * one);
    if (split == 1) launch<1>(at, out, m, n, k, mode, cluster);
    if (split == 2) launch<2>(at, out, m, n, k, mode, cluster);
    if (split == 4) launch<4>(at, out, m, n, k, mode, cluster);
    if (split == 8) launch<8>(at, out, m, n, k, mode, cluster);
  }
  cudaStreamEndCapture(s, &graph);
  cudaGraphInstantiate(&exec, graph, 0);
  cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
  cudaGraphLaunch(exec, s);
  float best = 1e9f;
  for (int i = 0; i < 5; ++i) {
    cudaEventRecord(a, s); cudaGraphLaunch(exec, s); cudaEventRecord(b, s); cudaEventSynchronize(b);
    float ms; cudaEventElapsedTime(&ms, a, b); best = ms < best ? ms : best;
  }
  cudaGraphExecDestroy(exec); cudaGraphDestroy(graph);
  return best * 1000.f / runs;
}
int main() {
  const size_t bytes = size_t(2) << 30;
  char* w; float* out;
  cudaMalloc(&w, bytes); cudaMalloc(&out, 64 * 65536 * 4); cudaMemset(w, 1, bytes);
  const int shapes[][2] = {{256, 7168}, {2112, 7168}, {4096, 4096}, {6144, 4096}, {8192, 8192}};
  printf("[");
  bool comma = false;
  for (const auto& shape : shapes)
    for (int split = 1; split <= 8; split *= 2)
      for (int m : {1, 16, 64}) {
        const int n = shape[0], k = shape[1];
        const float none = timed(split, m, n, k, 0, 1, w, bytes, out), idle = timed(split, m, n, k, 0, split, w, bytes, out),
                    sum = timed(split, m, n, k, 1, split, w, bytes, out);
        printf("%s\n{\"n\": %d, \"k\": %d, \"m\": %d, \"split\": %d, \"us_no_cluster\": %.2f, \"us_cluster\": %.2f, \"us_sum\": %.2f, \"tb_s\": %.2f}",
               comma ? "," : "", n, k, m, split, none, idle, sum, 2e-6 * n * k / sum);
        comma = true;
      }
  printf("\n]\n");
  const cudaError_t e = cudaDeviceSynchronize();
  if (e != cudaSuccess) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); return 1; }
}
