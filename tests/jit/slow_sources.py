"""Kernels for which ptxas generates slow code: one spills registers, and one keeps an array in local memory."""

SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) tiny(float* p) {
  float x[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) x[i] = p[threadIdx.x + 1024 * i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) p[threadIdx.x * 64 + i] = x[i] * x[(i * 7 + 1) % 64];
}
"""
STACK = """
extern "C" __global__ void tiny(float* p, int n) {
  float x[32];
  for (int i = 0; i < 32; ++i) x[i] = p[i];
  for (int i = 0; i < n; ++i) x[n * i % 32] += p[i];
  p[n] = x[n % 32];
}
"""
