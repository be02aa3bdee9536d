// Do products of one tile have the same bits with every instruction? Built by bench/matmul_probes.py for one type: TYPE, TYPE_ID, HEADER.
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
struct BF16 { static constexpr int kBytes = 2, kStep = 16; };
struct F16 { static constexpr int kBytes = 2, kStep = 16; };
struct E4M3 { static constexpr int kBytes = 1, kStep = 32; };
#include HEADER
#ifndef MOST
#define MOST 256
#endif
using T = TYPE;
constexpr int kVariants = 64;  // + 64 for tiles whose sums are exact, which no order changes
struct Result { unsigned long long differ[2 * kVariants]; unsigned int example[kVariants][6]; unsigned long long nonzero, elements; };

__device__ __forceinline__ uint32_t hashed(uint32_t x) {
  x ^= x >> 16; x *= 0x85ebca6bu; x ^= x >> 13; x *= 0xc2b2ae35u; x ^= x >> 16; return x;
}
// Element (row, k) of an operand: random sign and mantissa, an exponent within +- spread of the tile; zeros, and pairs that cancel.
__device__ __forceinline__ uint32_t element(uint32_t tile, int operand, int row, int k) {
  const uint32_t mode = tile % 6;
  int source = k;
  uint32_t flip = 0;
  if (mode == 5 && operand == 0) source = k & ~1, flip = k & 1;               // a[k] = -a[k + 1]
  if (mode == 5 && operand == 1) source = (hashed(tile * 7 + row) & 3) ? k & ~1 : k;  // most of b equal in pairs
  const uint32_t h = hashed(hashed(tile * 2 + operand) ^ (row * 4096u + source));
  if (mode == 4 && (h >> 28) < 8) return 0;
  const uint32_t sign = (h >> 31) ^ flip;
  if (mode == 0) {  // 1, 1.5, 2 or 3
    const uint32_t e = (h >> 8) & 1, half = h & 1;
    return TYPE_ID == 2 ? sign << 7 | (7 + e) << 3 | half << 2 : TYPE_ID == 0 ? sign << 15 | (127 + e) << 7 | half << 6 : sign << 15 | (15 + e) << 10 | half << 9;
  }
  if constexpr (T::kBytes == 1) {
    const int spread = mode == 0 ? 1 : mode == 1 ? 3 : mode == 2 ? 7 : mode == 3 ? 5 : 2;
    const int e = 7 + int((h >> 8) % (2 * spread + 1)) - spread;
    return sign << 7 | uint32_t(e < 0 ? 0 : e) << 3 | (h & 7);
  } else if constexpr (TYPE_ID == 0) {
    const int spread = mode == 0 ? 1 : mode == 1 ? 6 : mode == 2 ? 14 : mode == 3 ? 30 : 3;
    const int e = 127 + int((h >> 8) % (2 * spread + 1)) - spread;
    return sign << 15 | uint32_t(e) << 7 | (h & 127);
  } else {
    const int spread = mode == 0 ? 1 : mode == 1 ? 5 : mode == 2 ? 10 : mode == 3 ? 15 : 3;
    int e = 15 + int((h >> 8) % (2 * spread + 1)) - spread;
    return sign << 15 | uint32_t(e < 0 ? 0 : e > 30 ? 30 : e) << 10 | ((h >> 16) & 1023);
  }
}
__device__ __forceinline__ uint32_t panel(int row, int byte) { return row * 128 + (((byte >> 4) ^ (row & 7)) << 4) + (byte & 15); }
__device__ __forceinline__ uint64_t descriptor(uint32_t address) {
  return uint64_t((address & 0x3ffffu) >> 4) | uint64_t(1u << 30 | 1024 >> 4) << 32;
}
__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void finish() {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}
template <int R> __device__ __forceinline__ void pin(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
constexpr int kA = 0, kB = 8192, kRef = kB + 32768, kBytes = kRef + 65536;

// order: 0 as it is, 1 permuted inside each k-step.
__device__ __forceinline__ int moved(int k, int order) { return order ? (k & ~(T::kStep - 1)) | ((k * 5 + 3 + (k / T::kStep)) & (T::kStep - 1)) : k; }
__device__ __noinline__ void stage(unsigned char* s, int rows, uint32_t tile, int operand, int order) {
  for (int i = threadIdx.x; i < rows * 32; i += 128) {
    const int row = i / 32, byte = i % 32 * 4;
    uint32_t word = 0;
    for (int b = 0; b < 4; b += T::kBytes) word |= element(tile, operand, row, moved((byte + b) / T::kBytes, order)) << (8 * b);
    *reinterpret_cast<uint32_t*>(s + panel(row, byte)) = word;
  }
}
// One row for each k; 64 rows of the operand are contiguous.
__device__ __noinline__ void stage_transposed(unsigned char* s, int first, uint32_t tile, int operand) {
  for (int i = threadIdx.x; i < 64 * 32; i += 128) {
    const int k = i / 32, row = i % 32 * 2;
    *reinterpret_cast<uint32_t*>(s + panel(k, row * 2)) =
        element(tile, operand, first + row, k) | element(tile, operand, first + row + 1, k) << 16;
  }
}
__device__ __forceinline__ void ready() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}
__device__ __forceinline__ int place(int variant, uint32_t tile) { return variant + (tile % 6 == 0 ? kVariants : 0); }
__device__ __noinline__ void note(Result* out, int variant, uint32_t tile, int index, float got, float want) {
  if (atomicCAS(&out->example[variant][0], 0u, tile + 1) == 0) {
    out->example[variant][1] = index; out->example[variant][2] = threadIdx.x;
    out->example[variant][3] = __float_as_uint(got); out->example[variant][4] = __float_as_uint(want);
  }
}
__device__ __forceinline__ void judge(Result* out, int variant, uint32_t tile, int index, float got, float want, int& bad) {
  if (__float_as_uint(got) != __float_as_uint(want) && bad++ == 0) note(out, variant, tile, index, got, want);
}
template <int N> __device__ __forceinline__ void compare(Result* out, int variant, uint32_t tile, int chunk, float (&d)[N / 2], const float* ref) {
  int bad = 0, where = 0;
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    if (__float_as_uint(d[i]) != __float_as_uint(ref[(chunk * (N / 2) + i) * 128 + threadIdx.x])) ++bad, where = i;
  if (bad == 0) return;
  atomicAdd(&out->differ[place(variant, tile)], (unsigned long long)bad);
  float got = 0.f;
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    if (i == where) got = d[i];
  note(out, variant, tile, chunk * (N / 2) + where, got, ref[(chunk * (N / 2) + where) * 128 + threadIdx.x]);
}
enum { kSS, kRS, kZero };
template <int N, int kKind> __device__ __noinline__ void products(Result* out, int variant, uint32_t tile, uint32_t a, uint32_t b, const uint32_t* x, float* ref, bool save) {
#pragma unroll 1
  for (int chunk = 0; chunk < 256 / N; ++chunk) {
    float d[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) d[i] = 0.f;
    pin(d);
    fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t db = descriptor(b + chunk * N * 128 + step * 32);
      if constexpr (kKind == kRS) W<T, N>::rs(d, x + 4 * step, db, step > 0);
      else W<T, N>::ss(d, descriptor(a + step * 32), db, kKind == kZero || step > 0);
    }
    finish();
    pin(d);
    if (save) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) ref[(chunk * (N / 2) + i) * 128 + threadIdx.x] = d[i];
    } else {
      compare<N>(out, variant, tile, chunk, d, ref);
    }
  }
}
template <int N> __device__ __forceinline__ void every(Result* out, uint32_t tile, uint32_t a, uint32_t b, float* ref) {
  if constexpr (N > 0) {
    products<N, kSS>(out, N / 8 - 1, tile, a, b, nullptr, ref, false);
    every<N - 8>(out, tile, a, b, ref);
  }
}
__device__ __forceinline__ float* slot(float* ref, int row, int column) {
  return ref + (column / 8 * 4 + row % 16 / 8 * 2 + column % 2) * 128 + row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
}
#define MMA(KIND) asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
  : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t* a, const uint32_t* b) {
#if TYPE_ID == 0
  MMA("bf16");
#elif TYPE_ID == 1
  MMA("f16");
#endif
}
__global__ void __launch_bounds__(128, 1) probe(Result* out, uint32_t first, uint32_t tiles) {
  extern __shared__ __align__(1024) unsigned char s[];
  const uint32_t base = uint32_t(__cvta_generic_to_shared(s)), a = base + kA, b = base + kB;
  float* ref = reinterpret_cast<float*>(s + kRef);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  unsigned long long nonzero = 0, elements = 0;
  for (uint32_t tile = first + blockIdx.x; tile < first + tiles; tile += gridDim.x) {
    stage(s + kA, 64, tile, 0, 0);
    stage(s + kB, 256, tile, 1, 0);
    ready();
    uint32_t x[16];
    for (int i = 0; i < 16; ++i) {
      const int row = warp * 16 + g + i % 2 * 8, byte = (i / 4 * T::kStep + i % 4 / 2 * T::kStep / 2) * T::kBytes + t * 4;
      x[i] = *reinterpret_cast<uint32_t*>(s + kA + panel(row, byte));
    }
    products<256, kSS>(out, 0, tile, a, b, nullptr, ref, true);
    for (int i = 0; i < 128; ++i) nonzero += ref[i * 128 + threadIdx.x] != 0.f, ++elements;
    every<MOST>(out, tile, a, b, ref);
    products<8, kRS>(out, 32, tile, a, b, x, ref, false);
    products<64, kRS>(out, 33, tile, a, b, x, ref, false);
    products<128, kRS>(out, 34, tile, a, b, x, ref, false);
    products<256, kRS>(out, 35, tile, a, b, x, ref, false);
    products<128, kZero>(out, 36, tile, a, b, nullptr, ref, false);
    __syncthreads();
    // swapped: rows of b are m, rows of a are n
    for (int part = 0; part < 4; ++part) {
      float d[32];
      fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) W<T, 64>::ss(d, descriptor(b + part * 8192 + step * 32), descriptor(a + step * 32), step > 0);
      finish();
      pin(d);
      int bad = 0;
#pragma unroll
      for (int i = 0; i < 32; ++i)
        judge(out, 37, tile, part * 32 + i, d[i], *slot(ref, i / 4 * 8 + t * 2 + i % 2, part * 64 + warp * 16 + g + i % 4 / 2 * 8), bad);
      if (bad) atomicAdd(&out->differ[place(37, tile)], (unsigned long long)bad);
    }
#if TYPE_ID != 2
    {
      int bad = 0, swapped = 0;
      for (int j = 0; j < 32; ++j) {
        float d[4] = {0.f, 0.f, 0.f, 0.f};
        for (int step = 0; step < 4; ++step) {
          uint32_t y[2];
          for (int i = 0; i < 2; ++i) y[i] = *reinterpret_cast<uint32_t*>(s + kB + panel(8 * j + g, step * 32 + i * 16 + t * 4));
          mma(d, x + 4 * step, y);
        }
        for (int i = 0; i < 4; ++i) judge(out, 38, tile, 4 * j + i, d[i], ref[(4 * j + i) * 128 + threadIdx.x], bad);
      }
      // weights as a: 16 rows of b for each part, 8 rows of a
      for (int part = warp; part < 16; part += 4)
        for (int j = 0; j < 8; ++j) {
          float d[4] = {0.f, 0.f, 0.f, 0.f};
          for (int step = 0; step < 4; ++step) {
            uint32_t w[4], y[2];
            for (int i = 0; i < 4; ++i) w[i] = *reinterpret_cast<uint32_t*>(s + kB + panel(16 * part + g + i % 2 * 8, step * 32 + i / 2 * 16 + t * 4));
            for (int i = 0; i < 2; ++i) y[i] = *reinterpret_cast<uint32_t*>(s + kA + panel(8 * j + g, step * 32 + i * 16 + t * 4));
            mma(d, w, y);
          }
          for (int i = 0; i < 4; ++i) judge(out, 39, tile, 4 * j + i, d[i], *slot(ref, 8 * j + t * 2 + i % 2, 16 * part + g + i / 2 * 8), swapped);
        }
      if (bad) atomicAdd(&out->differ[place(38, tile)], (unsigned long long)bad);
      if (swapped) atomicAdd(&out->differ[place(39, tile)], (unsigned long long)swapped);
    }
#endif
    __syncthreads();
    stage(s + kA, 64, tile, 0, 1);
    stage(s + kB, 256, tile, 1, 1);
    ready();
    products<256, kSS>(out, 40, tile, a, b, nullptr, ref, false);
#if TYPE_ID != 2
    {
      for (int which = 0; which < 3; ++which) {
        __syncthreads();
        if (which == 1) stage(s + kA, 64, tile, 0, 0); else stage_transposed(s + kA, 0, tile, 0);
        if (which == 0) stage(s + kB, 64, tile, 1, 0); else stage_transposed(s + kB, 0, tile, 1);
        ready();
        float d[32];
        fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          const uint64_t da = descriptor(a + step * (which == 1 ? 32 : 2048)), db = descriptor(b + step * (which == 0 ? 32 : 2048));
          if (which == 0) W<T, 64>::ts(d, da, db, step > 0);
          if (which == 1) W<T, 64>::st(d, da, db, step > 0);
          if (which == 2) W<T, 64>::tt(d, da, db, step > 0);
        }
        finish();
        pin(d);
        compare<64>(out, 41 + which, tile, 0, d, ref);
      }
    }
#endif
    // controls that must differ: the last two k-steps swapped; half of the steps summed apart
    __syncthreads();
    stage(s + kA, 64, tile, 0, 0);
    stage(s + kB, 256, tile, 1, 0);
    ready();
    {
      float d[128];
      fence();
      W<T, 256>::ss(d, descriptor(a), descriptor(b), 0);
      W<T, 256>::ss(d, descriptor(a + 32), descriptor(b + 32), 1);
      W<T, 256>::ss(d, descriptor(a + 96), descriptor(b + 96), 1);
      W<T, 256>::ss(d, descriptor(a + 64), descriptor(b + 64), 1);
      finish();
      pin(d);
      compare<256>(out, 44, tile, 0, d, ref);
    }
    __syncthreads();
  }
  atomicAdd(&out->nonzero, nonzero);
  atomicAdd(&out->elements, elements);
}
int main(int argc, char** argv) {
  const uint32_t tiles = argc > 1 ? atoi(argv[1]) : 1000000;
  Result* out;
  cudaMalloc(&out, sizeof(Result));
  cudaMemset(out, 0, sizeof(Result));
  cudaFuncSetAttribute(probe, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cudaEvent_t from, to;
  cudaEventCreate(&from); cudaEventCreate(&to);
  cudaEventRecord(from);
  uint32_t done = 0;
  float ms = 0;
  while (done < tiles && ms < 8000.f) {  // bounded by time
    const uint32_t some = tiles - done < 20000 ? tiles - done : 20000;
    probe<<<264, 128, kBytes>>>(out, done, some);
    done += some;
    cudaEventRecord(to); cudaEventSynchronize(to); cudaEventElapsedTime(&ms, from, to);
  }
  Result r;
  const cudaError_t error = cudaMemcpy(&r, out, sizeof(r), cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) { printf("{\"type\": \"%s\", \"error\": \"%s\"}\n", TYPE_NAME, cudaGetErrorString(error)); return 1; }
  printf("{\"type\": \"%s\", \"tiles\": %u, \"ms\": %.0f, \"elements\": %llu, \"nonzero\": %llu, \"differ\": {", TYPE_NAME, done, ms, r.elements, r.nonzero);
  const char* names[] = {"rs_8", "rs_64", "rs_128", "rs_256", "onto_zero_128", "swapped_64", "mma_sync", "mma_sync_swapped", "permuted_in_step", "a_transposed", "b_transposed", "both_transposed", "control_steps_swapped"};
  for (int v = 0; v < 45; ++v) {
    if (v < 32) printf("%s\"ss_%d\": %llu", v ? ", " : "", 8 * v + 8, r.differ[v]); else printf(", \"%s\": %llu", names[v - 32], r.differ[v]);
  }
  printf("}, \"differ_exact\": {");
  for (int v = 0; v < 45; ++v)
    if (v < 32) printf("%s\"ss_%d\": %llu", v ? ", " : "", 8 * v + 8, r.differ[v + 64]); else printf(", \"%s\": %llu", names[v - 32], r.differ[v + 64]);
  printf("}, \"examples\": {");
  bool comma = false;
  for (int v = 0; v < 45; ++v)
    if (r.example[v][0]) {
      printf("%s\"%d\": [%u, %u, %u, \"%08x\", \"%08x\"]", comma ? ", " : "", v, r.example[v][0] - 1, r.example[v][1], r.example[v][2], r.example[v][3], r.example[v][4]);
      comma = true;
    }
  printf("}}\n");
}
