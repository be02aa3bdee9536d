// 16-byte accesses if the address is aligned, otherwise element by element. `aligned` is uniform over the grid, so the fallback
// costs a branch and never diverges.
#pragma once
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

__device__ __forceinline__ uint4 load_elements(const void* src, uint16_t) {
  const uint16_t* e = static_cast<const uint16_t*>(src);
  return make_uint4(e[0] | uint32_t(e[1]) << 16, e[2] | uint32_t(e[3]) << 16, e[4] | uint32_t(e[5]) << 16,
                    e[6] | uint32_t(e[7]) << 16);
}
__device__ __forceinline__ uint4 load_elements(const void* src, uint8_t) {
  const uint8_t* e = static_cast<const uint8_t*>(src);
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    word[i] = e[4 * i] | uint32_t(e[4 * i + 1]) << 8 | uint32_t(e[4 * i + 2]) << 16 | uint32_t(e[4 * i + 3]) << 24;
  return make_uint4(word[0], word[1], word[2], word[3]);
}
__device__ __forceinline__ uint4 load_elements(const void* src, uint32_t) {
  const uint32_t* e = static_cast<const uint32_t*>(src);
  return make_uint4(e[0], e[1], e[2], e[3]);
}

// Copies 16 bytes from global to shared memory, or stores zeros if not valid. Element is uint8_t, uint16_t or uint32_t.
template <class Element>
__device__ __forceinline__ void fetch_chunk(uint32_t dst, const void* src, bool valid, bool aligned) {
  if (aligned) {
    cp_async_16(dst, src, valid);
  } else {
    store_shared_16(dst, valid ? load_elements(src, Element{}) : make_uint4(0, 0, 0, 0));
  }
}

// Stores four 16-bit elements to global memory.
__device__ __forceinline__ void store_halves_4(void* dst, uint2 v, bool aligned) {
  if (aligned) {
    *static_cast<uint2*>(dst) = v;
  } else {
    uint16_t* e = static_cast<uint16_t*>(dst);
    e[0] = v.x, e[1] = v.x >> 16, e[2] = v.y, e[3] = v.y >> 16;
  }
}
__device__ __forceinline__ void store_halves_8(void* dst, uint4 v, bool aligned) {
  if (aligned) {
    *static_cast<uint4*>(dst) = v;
  } else {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {  // rolled loop: this code is inlined often and rarely executed
      static_cast<uint16_t*>(dst)[i] = v.x;
      v = make_uint4(v.x >> 16 | v.y << 16, v.y >> 16 | v.z << 16, v.z >> 16 | v.w << 16, v.w >> 16);
    }
  }
}

}  // namespace opfacade
