// Shadows kernels/ptx/cluster.cuh. Bits 24 and up of a shared address are rank + 1, or 0 for the CTA itself.
#pragma once
#include "kernels/ptx/cluster_barrier.cuh"
#include "tests/emulator/simt.h"

namespace opfacade {

inline uint32_t cluster_address(uint32_t address, int rank) { return address | static_cast<uint32_t>(rank + 1) << 24; }
inline float cluster_load(uint32_t address) {
  float value;
  memcpy(&value, simt::at(address), 4);
  return value;
}
inline uint32_t cluster_load_word(uint32_t address) {
  uint32_t value;
  memcpy(&value, simt::at(address), 4);
  return value;
}
inline uint64_t cluster_load_two_words(uint32_t address) {
  uint64_t value;
  memcpy(&value, simt::at(address), 8);
  return value;
}
inline float4 cluster_load_4(uint32_t address) {
  float4 value;
  memcpy(&value, simt::at(address), 16);
  return value;
}

}  // namespace opfacade
