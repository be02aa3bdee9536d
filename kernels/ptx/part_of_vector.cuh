// The first bytes of a vector of sixteen, in pieces of eight, four, two and one: no byte behind them is read.
#pragma once
#include <stdint.h>

namespace opfacade {

// bytes: below 16. from: aligned to 16 bytes. Zeros behind them.
__device__ __forceinline__ uint4 part_of_vector(const void* from, int bytes) {
  const unsigned char* at = static_cast<const unsigned char*>(from);
  uint2 eight = make_uint2(0, 0);
  uint32_t four = 0, two = 0, one = 0;
  if (bytes & 8) eight = *reinterpret_cast<const uint2*>(at);
  at += bytes & 8;
  if (bytes & 4) four = *reinterpret_cast<const uint32_t*>(at);
  at += bytes & 4;
  if (bytes & 2) two = *reinterpret_cast<const uint16_t*>(at);
  at += bytes & 2;
  if (bytes & 1) one = *at;
  const uint32_t rest = two | one << (bytes & 2 ? 16 : 0);
  const uint32_t first = bytes & 4 ? four : rest, second = bytes & 4 ? rest : 0;
  return bytes & 8 ? make_uint4(eight.x, eight.y, first, second) : make_uint4(first, second, 0, 0);
}

}  // namespace opfacade
