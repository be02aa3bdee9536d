// Products of at most eight rows, whose time is that of reading the weight: a warp has eight columns, and brings their elements of k
// and those of x to its own rings in shared memory by cp.async, many stages ahead. Its products are those of mma.sync, which has the
// bits of wgmma (bench/matmul_probes.py), in the same order of k: one chain, or segments that are added in their order (chain.cuh).
// So a row has the bits of the tiles for many rows. Lines may begin anywhere; nothing outside of a line is read.
#pragma once
#include "kernels/matmul/finish.cuh"
#include "kernels/ptx/cp_async_part.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/mma_chain.cuh"

namespace opfacade {

constexpr int kGemvColumns = 8;  // of a warp
constexpr int kGemvStage = 64;   // elements of k

// A config C: T; kWarps of a CTA, the most that it may have, each with kStages in its rings. Whole vectors of 16 bytes come, so a
// stage may need the first of the next. kSegmented: each warp of a CTA sums a segment of k.
template <class C>
constexpr int kGemvRing = C::kStages * 2 * kGemvStage;
template <class C>
constexpr int kGemvLine = kGemvRing<C> + 16;  // bytes; lines of a warp lie in other banks

// How many elements a line begins behind an aligned address.
__device__ __forceinline__ int gemv_over(const uint16_t* line) { return static_cast<int>(reinterpret_cast<uintptr_t>(line) % 16) / 2; }

// Eight lines of an operand, or fewer, by element of k from that on with which the segment of this warp begins.
template <class C>
struct GemvLines {
  unsigned char* memory;
  const uint16_t* line[2];  // that this lane copies vectors of: line lane / 8 and four behind; null where there is none
  int before, after;        // elements of a line before its segment, and from there to its end

  __device__ __forceinline__ GemvLines(unsigned char* memory, const MatmulOperand& of, int batch, int first, int lines, int begin, int k)
      : memory(memory), before(begin), after(k - begin) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = first + threadIdx.x % 32 / 8 + 4 * i;
      const uint16_t* data = static_cast<const uint16_t*>(of.data) + batch * of.batch + at * of.row + begin;
      line[i] = at < lines ? data : nullptr;
    }
  }
  // Copies the vectors of a stage.
  __device__ __forceinline__ void copy(int stage) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (line[i] == nullptr) continue;
      const int vector = stage * 8 + threadIdx.x % 8, at = vector * 8 - gemv_over(line[i]);
      unsigned char* to = memory + (threadIdx.x % 32 / 8 + 4 * i) * kGemvLine<C> + vector * 16 % kGemvRing<C>;
      if (before + at >= 0) {
        cp_async_part(smem_address(to), line[i] + at, min(max(after - at, 0), 8) * 2);
      } else {  // the first vector of a line that is not aligned
        for (int j = -at; j < 8; ++j) reinterpret_cast<uint16_t*>(to)[j] = j < after - at ? line[i][at + j] : 0;
      }
    }
  }
  // Where line lane / 4 is, and how far its first element is behind the begin.
  __device__ __forceinline__ const unsigned char* own() const { return memory + threadIdx.x % 32 / 4 * kGemvLine<C>; }
};

// Two neighbouring elements of a line in shared memory. over: as gemv_over of the line.
template <class C, bool kWide>
__device__ __forceinline__ uint32_t gemv_pair(const unsigned char* line, int over, int element) {
  const auto word = [line](int byte) { return *reinterpret_cast<const uint32_t*>(line + byte % kGemvRing<C>); };
  if constexpr (kWide) return word(2 * element);
  const int byte = 2 * (element + over), first = byte / 4 * 4;
  const uint64_t both = word(first) | static_cast<uint64_t>(word(first + 4)) << 32;
  return static_cast<uint32_t>(both >> byte % 4 * 8);
}

// The lines of this warp, where those of this lane begin, and whether it has a row of x.
template <class C>
struct GemvWarp {
  GemvLines<C> weight, x;
  int weight_over, x_over;
  bool has_row;
};

// The sums of a warp over `count` elements of k: those of row lane / 4 and two columns.
template <class C, bool kWide>
__device__ __forceinline__ void gemv_sums(float (&sums)[4], const GemvWarp<C>& of, int count) {
  const int steps = (count + kGemvStage - 1) / kGemvStage, stages = steps + (kWide ? 0 : 1);
  const auto copy = [&](int stage) {
    if (stage < stages) of.weight.copy(stage), of.x.copy(stage);
    cp_async_commit();  // a group for each stage, also behind the last
  };
  const unsigned char *weight = of.weight.own(), *x = of.x.own();
#pragma unroll 1
  for (int stage = 0; stage < C::kStages - 1; ++stage) copy(stage);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<C::kStages - 3>();  // of kStages - 1 + step groups all up to that of the next stage
    __syncwarp();                      // and all lanes have read the stage before, which is overwritten
    copy(step + C::kStages - 1);
#pragma unroll
    for (int i = 0; i < kGemvStage; i += 16) {
      const int element = step * kGemvStage + i + threadIdx.x % 4 * 2;
      uint32_t a[4] = {};  // rows from eight on are not there
      if (of.has_row) a[0] = gemv_pair<C, kWide>(x, of.x_over, element), a[2] = gemv_pair<C, kWide>(x, of.x_over, element + 8);
      const uint32_t first = gemv_pair<C, kWide>(weight, of.weight_over, element);
      mma_chain<typename C::T>(sums, a, first, gemv_pair<C, kWide>(weight, of.weight_over, element + 8));
    }
  }
  cp_async_wait<0>();
}

// A CTA has neighbouring blocks of columns, one for each warp; or one block, of which each warp sums a segment of k.
template <class C>
__device__ __forceinline__ void matmul_gemv(const MatmulParams& p) {
  static_assert(C::kWarps * 2 * kGemvColumns * kGemvLine<C> <= 232448, "shared memory of a CTA");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int each = kGemvColumns * (C::kSegmented ? 1 : blockDim.x / 32), across = (p.columns + each - 1) / each;
  const int batch = blockIdx.x / across, column = blockIdx.x % across * each + (C::kSegmented ? 0 : warp * kGemvColumns);
  const int begin = C::kSegmented ? warp * p.segment : 0, count = C::kSegmented ? min(p.segment, p.k - begin) : p.k;
  wait_for_previous();
  const int rows = p.num_valid == nullptr ? p.rows : max(0, min(p.rows, *p.num_valid));
  unsigned char* const memory = dynamic_shared() + warp * (kGemvColumns + p.rows) * kGemvLine<C>;
  const GemvLines<C> weight(memory, p.weight, batch, column, p.columns, begin, p.k);
  const GemvLines<C> x(memory + kGemvColumns * kGemvLine<C>, p.x, batch, 0, rows, begin, p.k);
  const auto over = [&](const MatmulOperand& of, int line) {
    return gemv_over(static_cast<const uint16_t*>(of.data) + batch * of.batch + line * of.row + begin);
  };
  float sums[4] = {};
  const GemvWarp<C> own{weight, x, over(p.weight, column + lane / 4), over(p.x, lane / 4), lane / 4 < rows};
  if (p.weight_wide && p.x_wide) gemv_sums<C, true>(sums, own, count);
  else gemv_sums<C, false>(sums, own, count);
  if constexpr (C::kSegmented) {
    __syncthreads();
    float4* const parts = reinterpret_cast<float4*>(dynamic_shared());
    parts[threadIdx.x] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    __syncthreads();
    if (warp > 0) return;
#pragma unroll 1
    for (int other = 1; other < static_cast<int>(blockDim.x / 32); ++other) {
      const float4 more = parts[other * 32 + lane];
      sums[0] += more.x, sums[1] += more.y, sums[2] += more.z, sums[3] += more.w;
    }
  }
  finish_block<C>(p, {batch, 0, column, rows, batch}, lane / 4, column + lane % 4 * 2, sums);
}

}  // namespace opfacade
