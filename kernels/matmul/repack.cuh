// Copies operands whose lines are not a multiple of sixteen bytes apart, so that TMA can load the copy. Each element is read
// once, while threads that copy elements to stages read it once per tile. A warp copies a part of a line, or several short
// lines.
#pragma once
#include "kernels/matmul/lines.cuh"
#include "kernels/matmul/repack_params.h"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

constexpr int kRepackChunks = kRepackPart / 32;  // chunks per thread, which are all loaded before the first is stored

// Copies chunks first, first + 32 and so on of one line.
template <class Bits>
__device__ __forceinline__ void repack_part(const RepackOperand& of, const Bits* from, uint4* to, int64_t first) {
  constexpr int kEach = 16 / sizeof(Bits);
  LineChunk<Bits> found[kRepackChunks];
#pragma unroll
  for (int i = 0; i < kRepackChunks; ++i) {
    const int64_t at = (first + 32 * i) * kEach;
    found[i].load(from + at * of.step, of.step, at, static_cast<int>(of.length - at));
  }
#pragma unroll
  for (int i = 0; i < kRepackChunks; ++i)
    if ((first + 32 * i) * kEach < of.length) store_vector(to + first + 32 * i, found[i].get());
}

// blockIdx.y: index of the operand. A warp copies one part of a line, or several short lines.
template <class Bits>
__device__ __forceinline__ void repack(const RepackParams& p) {
  constexpr int kEach = 16 / sizeof(Bits);
  allow_dependents();
  wait_for_previous();
  const RepackOperand& of = p.operand[blockIdx.y];
  const int chunks = (of.length + kEach - 1) / kEach, parts = (chunks + kRepackPart - 1) / kRepackPart;
  const int lanes = lanes_of_line(chunks), lane = threadIdx.x % 32;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (kRepackThreads / 32) + threadIdx.x / 32;
  const int64_t row = warp / parts * (32 / lanes) + lane / lanes;
  if (row >= static_cast<int64_t>(of.lines) * of.batches) return;
  const int64_t batch = row / of.lines, line = row % of.lines, first = warp % parts * kRepackPart + lane % lanes;
  const Bits* from = static_cast<const Bits*>(of.from) + batch * of.batch + line * of.line;
  uint4* to = static_cast<uint4*>(of.to) + row * chunks;
  repack_part(of, from, to, first);
}

}  // namespace opfacade
