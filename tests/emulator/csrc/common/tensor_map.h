// Shadows csrc/common/tensor_map.h: a tensor map stores the shape and the strides themselves.
#pragma once
#include <stdint.h>
#include <string.h>

#include "kernels/ptx/tensor_map.h"

namespace opfacade {

enum class MapElement : int32_t { kF16, kBf16, kByte };

struct TensorShape {
  const void* data;
  int64_t size[5];
  int64_t stride[4];
  int32_t box[4];
  MapElement element;
  int32_t plain;
  int32_t narrow;  // the box is 64 bytes wide instead
};
static_assert(sizeof(TensorShape) <= sizeof(TensorMap));

inline bool tensor_map(TensorMap& map, const TensorShape& t) {
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0) return false;
  for (int axis = 0; axis < 5; ++axis)
    if (t.size[axis] <= 0 || t.size[axis] > INT32_MAX) return false;
  for (int axis = 0; axis < 4; ++axis)
    if (t.size[axis + 1] > 1 && (t.stride[axis] <= 0 || t.stride[axis] % 16 != 0)) return false;
  memcpy(&map, &t, sizeof(t));
  return true;
}

}  // namespace opfacade
