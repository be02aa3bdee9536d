// Parameters of mask packing, shared by the kernel and its binding. Launch: grid (x, y), block kPackThreads: CTAs of column y
// take requests y, y + grid.y, ..., and share the bytes of each. Request number `batch` is the memory after the last request.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kPackThreads = 256;

struct PackMaskParams {
  const uint8_t* mask;         // [bits]
  const int32_t* bits_indptr;  // [batch + 1]; null: all requests have bits / batch
  uint8_t* packed;             // [bytes]
  int32_t* packed_indptr;      // [batch + 1]
  int64_t bits, bytes;
  int32_t batch;
};

}  // namespace opfacade
