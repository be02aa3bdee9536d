// Tensor maps for TMA. Encoding one costs about as much as a launch, so each thread caches its latest maps by address, shape and
// strides: the maps of a KV pool are encoded once.
#pragma once
#include <cuda.h>
#include <dlfcn.h>

#include <stdint.h>
#include <string.h>

#include "kernels/ptx/tensor_map.h"

namespace opfacade {

enum class MapElement : int32_t { kF16, kBf16, kByte };

// A tensor, innermost dimension first and contiguous; strides in bytes. The box is the part that one copy moves: 128 bytes wide and
// swizzled, or `plain` elements wide and not swizzled. Dimensions may overlap in memory.
struct TensorShape {
  const void* data;
  int64_t size[5];
  int64_t stride[4];
  int32_t box[4];
  MapElement element;
  int32_t plain;
  int32_t narrow;  // the box is 64 bytes wide instead
};

inline bool operator==(const TensorShape& a, const TensorShape& b) {
  return a.data == b.data && a.element == b.element && a.plain == b.plain && a.narrow == b.narrow && memcmp(a.size, b.size, sizeof(a.size)) == 0 &&
         memcmp(a.stride, b.stride, sizeof(a.stride)) == 0 && memcmp(a.box, b.box, sizeof(a.box)) == 0;
}

// cuTensorMapEncodeTiled, or null if the driver does not have it.
inline decltype(&::cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto found = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void* symbol = library == nullptr ? nullptr : dlsym(library, "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&::cuTensorMapEncodeTiled)>(symbol);
  }();
  return found;
}

// Limits of TMA: address and strides are multiples of 16 bytes, and sizes and strides fit their fields. The stride of an axis
// of size 1 is free.
inline bool mappable(const TensorShape& t) {
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0) return false;
  for (int axis = 0; axis < 5; ++axis)
    if (t.size[axis] <= 0 || t.size[axis] > INT32_MAX) return false;
  for (int axis = 0; axis < 4; ++axis)
    if (t.size[axis + 1] > 1 && (t.stride[axis] <= 0 || t.stride[axis] % 16 != 0 || t.stride[axis] >= int64_t{1} << 40))
      return false;
  return true;
}

inline bool encode_map(TensorMap& map, const TensorShape& t) {
  const auto encode = tensor_map_encoder();
  if (encode == nullptr || !mappable(t)) return false;
  cuuint64_t size[5], stride[4];
  const cuuint32_t width = (t.narrow != 0 ? 64u : 128u) / (t.element == MapElement::kByte ? 1 : 2);
  cuuint32_t box[5] = {t.plain != 0 ? static_cast<cuuint32_t>(t.plain) : width}, step[5] = {1, 1, 1, 1, 1};
  for (int axis = 0; axis < 5; ++axis) size[axis] = static_cast<cuuint64_t>(t.size[axis]);
  for (int axis = 0; axis < 4; ++axis) {
    stride[axis] = t.size[axis + 1] > 1 ? static_cast<cuuint64_t>(t.stride[axis]) : cuuint64_t{16};
    box[axis + 1] = static_cast<cuuint32_t>(t.box[axis]);
  }
  const auto type = t.element == MapElement::kByte   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                    : t.element == MapElement::kBf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                     : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return encode(reinterpret_cast<CUtensorMap*>(&map), type, 5, const_cast<void*>(t.data), size, stride, box, step,
                CU_TENSOR_MAP_INTERLEAVE_NONE,
                t.plain != 0 ? CU_TENSOR_MAP_SWIZZLE_NONE : t.narrow != 0 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// The map of a tensor, cached per thread; false if TMA cannot read the tensor.
inline bool tensor_map(TensorMap& map, const TensorShape& shape) {
  struct Entry {
    TensorShape shape{};
    TensorMap map{};
    bool encoded = false;
  };
  constexpr int kEntries = 64;
  static thread_local Entry entries[kEntries];
  Entry& entry = entries[(reinterpret_cast<uintptr_t>(shape.data) / 512 * 0x9e3779b97f4a7c15ull) >> 58];
  if (!(entry.shape == shape)) {
    entry.encoded = encode_map(entry.map, shape);
    entry.shape = shape;
  }
  map = entry.map;
  return entry.encoded;
}

}  // namespace opfacade
