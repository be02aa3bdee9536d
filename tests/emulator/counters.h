// Counters of a kernel that counts launches and claims records, which few kernels do: see simt.h for the others.
#pragma once
#include "tests/emulator/simt.h"

inline uint32_t atomicCAS(uint32_t* address, uint32_t expected, uint32_t value) {
  const uint32_t before = *address;
  if (before == expected) *address = value;
  return before;
}
// Counts up to `last`, then returns to 0.
inline uint32_t atomicInc(uint32_t* address, uint32_t last) {
  const uint32_t before = *address;
  *address = before >= last ? 0 : before + 1;
  return before;
}
inline void __threadfence_system() {}
