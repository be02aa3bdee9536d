// Packs eight entries of a mask into a byte; each request begins a new byte. Reads of the mask bound the time: a thread packs
// eight entries, with one load if they are aligned. Each warp sums the bytes of all earlier requests, so that one launch
// suffices: for a batch of a thousand each lane loads 32 values.
#pragma once
#include "kernels/mask/pack_mask_params.h"

namespace opfacade {

struct Segment {
  int64_t begin, length;

  __device__ __forceinline__ int64_t bytes() const { return (length + 7) / 8; }
};

// The bounds are clamped, so a wrong entry of the indptr causes no read outside the mask.
__device__ __forceinline__ Segment segment_of(const PackMaskParams& p, int request) {
  if (p.bits_indptr == nullptr) return {p.bits / p.batch * request, p.bits / p.batch};
  const int64_t begin = max(int64_t{0}, min(p.bits, int64_t{p.bits_indptr[request]}));
  const int64_t end = max(int64_t{0}, min(p.bits, int64_t{p.bits_indptr[request + 1]}));
  return {begin, max(int64_t{0}, end - begin)};
}

// The number of bytes of all earlier requests, which each warp computes.
__device__ __forceinline__ int64_t bytes_before(const PackMaskParams& p, int request) {
  if (p.bits_indptr == nullptr) return request == 0 ? 0 : segment_of(p, 0).bytes() * request;
  int64_t total = 0;
  for (int before = threadIdx.x % 32; before < request; before += 32) total += segment_of(p, before).bytes();
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  return total;
}

template <bool kBig>
__device__ __forceinline__ uint8_t packed_byte(const uint8_t* entries, int64_t left) {
  uint32_t low = 0, high = 0;  // four entries in each word
  if (left >= 8 && reinterpret_cast<uintptr_t>(entries) % 8 == 0) {
    const uint2 both = *reinterpret_cast<const uint2*>(entries);
    low = both.x, high = both.y;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < left) (i < 4 ? low : high) |= uint32_t{entries[i]} << 8 * (i % 4);
  }
  uint32_t byte = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) byte |= uint32_t{((i < 4 ? low : high) >> 8 * (i % 4) & 0xff) != 0} << (kBig ? 7 - i : i);
  return static_cast<uint8_t>(byte);
}

template <bool kBig>
__device__ __forceinline__ void pack_mask(const PackMaskParams& p) {
  const int64_t first = int64_t{blockIdx.x} * kPackThreads + threadIdx.x, step = int64_t{gridDim.x} * kPackThreads;
  for (int request = blockIdx.y; request <= p.batch; request += gridDim.y) {
    const int64_t start = bytes_before(p, request);
    if (first == 0) p.packed_indptr[request] = static_cast<int32_t>(start);
    if (request == p.batch) {
      for (int64_t at = start + first; at < p.bytes; at += step) p.packed[at] = 0;
      return;
    }
    const Segment own = segment_of(p, request);
    // Overlapping segments may need more bytes than p.bytes.
    for (int64_t at = first; at < own.bytes() && start + at < p.bytes; at += step)
      p.packed[start + at] = packed_byte<kBig>(p.mask + own.begin + 8 * at, own.length - 8 * at);
  }
}

}  // namespace opfacade
