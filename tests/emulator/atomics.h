// Atomics of device code. Threads switch only at waits, so a plain access is atomic.
#pragma once
#include <stdint.h>

#include <algorithm>

#include "tests/emulator/order.h"

SIMT_UNSEEN inline uint32_t atomicAdd(uint32_t* address, uint32_t value) {
  const uint32_t before = *address;
  *address += value;
  return before;
}
SIMT_UNSEEN inline float atomicAdd(float* address, float value) {
  const float before = *address;
  *address += value;
  return before;
}
SIMT_UNSEEN inline uint32_t atomicOr(uint32_t* address, uint32_t value) {
  const uint32_t old = *address;
  *address = old | value;
  return old;
}
SIMT_UNSEEN inline uint32_t atomicExch(uint32_t* address, uint32_t value) {
  const uint32_t before = *address;
  *address = value;
  return before;
}
SIMT_UNSEEN inline uint32_t atomicMax(uint32_t* address, uint32_t value) {
  const uint32_t before = *address;
  *address = std::max(before, value);
  return before;
}
SIMT_UNSEEN inline unsigned long long atomicMax(unsigned long long* address, unsigned long long value) {
  const unsigned long long before = *address;
  *address = std::max(before, value);
  return before;
}
