// Shadows kernels/ptx/tma.cuh: a box is copied at once, swizzled or plain, with zeros outside the tensor. Where a GPU ends with an
// illegal instruction, because a box does not begin with a multiple of 16 bytes, all of it is NaN.
#pragma once
#include "csrc/common/tensor_map.h"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace opfacade {

inline void prefetch_map(const TensorMap&) {}
inline void fence_async_shared() {}

struct BoxAt {
  int x[5];
};
inline uint32_t swizzled_128(uint32_t address) { return address ^ (address >> 3 & 0x70); }

inline void tma_load(uint32_t dst, const TensorMap& map, uint32_t barrier, const BoxAt& at) {
  TensorShape t;
  memcpy(&t, &map, sizeof(t));
  const int rows = t.box[0] * t.box[1] * t.box[2] * t.box[3];
  const int bytes = t.element == MapElement::kByte ? 1 : 2, width = t.plain != 0 ? t.plain * bytes : 128;
  const bool legal = at.x[0] * bytes % 16 == 0;
  for (int row = 0; row < rows; ++row) {
    int rest = row;
    const char* src = static_cast<const char*>(t.data);
    bool inside = true;
    for (int axis = 0; axis < 4; ++axis) {
      const int place = at.x[axis + 1] + rest % t.box[axis];
      rest /= t.box[axis];
      inside &= place >= 0 && place < t.size[axis + 1];
      src += place * t.stride[axis];
    }
    for (int column = 0; column < width / bytes; ++column) {
      uint16_t element = 0;
      if (inside && at.x[0] + column < t.size[0]) memcpy(&element, src + (at.x[0] + column) * bytes, bytes);
      if (!legal) element = 0xffff;
      const uint32_t at = dst + row * width + column * bytes;
      memcpy(simt::at(t.plain != 0 ? at : swizzled_128(at)), &element, bytes);
    }
  }
  mbarrier_bytes_came(barrier, rows * width);
}
inline void tma_load_multicast(uint32_t dst, const TensorMap& map, uint32_t barrier, uint16_t mask, const BoxAt& at) {
  for (int rank = 0; rank < 16; ++rank)
    if (mask >> rank & 1) tma_load(cluster_address(dst, rank), map, cluster_address(barrier, rank), at);
}

}  // namespace opfacade
