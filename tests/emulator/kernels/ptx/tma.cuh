// Shadows kernels/ptx/tma.cuh: a box, swizzled or plain, is loaded immediately, with zeros outside the tensor, and stored when
// its group is waited for. If a box does not begin at a multiple of 16 bytes, which is an illegal instruction on a GPU,
// everything loaded is NaN.
#pragma once
#include "csrc/common/tensor_map.h"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace opfacade {

inline void prefetch_map(const TensorMap&) {}
inline thread_local int async_fences = 0;  // counted, because in the emulator a fence has no other effect
inline void fence_async_shared() { ++async_fences; }

struct BoxAt {
  int x[5];
};
inline uint32_t swizzled_128(uint32_t address) { return address ^ (address >> 3 & 0x70); }
inline uint32_t swizzled_64(uint32_t address) { return address ^ (address >> 3 & 0x30); }

// Calls f(whether the element is inside the tensor, its address in memory, its address in shared memory) for all elements of a
// box. width, byte: sizes of a line and of an element, in bytes.
template <class F>
void each_element(const TensorShape& t, const BoxAt& at, uint32_t shared, int width, int bytes, const F& f) {
  const int rows = t.box[0] * t.box[1] * t.box[2] * t.box[3];
  for (int row = 0; row < rows; ++row) {
    int rest = row;
    const char* place = static_cast<const char*>(t.data);
    bool inside = true;
    for (int axis = 0; axis < 4; ++axis) {
      const int index = at.x[axis + 1] + rest % t.box[axis];
      rest /= t.box[axis];
      inside &= index >= 0 && index < t.size[axis + 1];
      place += index * t.stride[axis];
    }
    for (int column = 0; column < width / bytes; ++column) {
      const uint32_t address = shared + row * width + column * bytes;
      f(inside && at.x[0] + column < t.size[0], place + (at.x[0] + column) * bytes,
        t.plain != 0 ? address : t.narrow != 0 ? swizzled_64(address) : swizzled_128(address));
    }
  }
}

inline void tma_load(uint32_t dst, const TensorMap& map, uint32_t barrier, const BoxAt& at) {
  TensorShape t;
  memcpy(&t, &map, sizeof(t));
  const int bytes = t.element == MapElement::kByte ? 1 : 2, width = t.plain != 0 ? t.plain * bytes : t.narrow != 0 ? 64 : 128;
  const bool legal = at.x[0] * bytes % 16 == 0;
  simt::order::begin_copy();
  each_element(t, at, dst, width, bytes, [&](bool inside, const char* from, uint32_t to) {
    uint16_t element = 0;
    if (inside) memcpy(&element, from, bytes);
    if (!legal) element = 0xffff;
    simt::order::write(simt::at(to), bytes);
    memcpy(simt::at(to), &element, bytes);
  });
  mbarrier_bytes_came(barrier, t.box[0] * t.box[1] * t.box[2] * t.box[3] * width);
}
inline void tma_load_multicast(uint32_t dst, const TensorMap& map, uint32_t barrier, uint16_t mask, const BoxAt& at) {
  for (int rank = 0; rank < 16; ++rank)
    if (mask >> rank & 1) tma_load(cluster_address(dst, rank), map, cluster_address(barrier, rank), at);
}

// Elements have 16 bits. A store without a wait is not executed.
inline void tma_store(const TensorMap& map, uint32_t src, const BoxAt& at) {
  TensorShape t;
  memcpy(&t, &map, sizeof(t));
  const int line = t.narrow != 0 ? 64 : 128;
  if (src % (8 * line) != 0) simt::fail("a box that is stored is not where its swizzle begins");
  simt::ask_store([t, src, at, line] {
    each_element(t, at, src, line, 2, [](bool inside, const char* to, uint32_t from) {
      if (inside) memcpy(const_cast<char*>(to), simt::at(from), 2);
    });
  });
}
inline void tma_store_commit() { simt::close_stores(); }
template <int kPending>
void tma_store_wait() {
  simt::await_stores(kPending);
}

}  // namespace opfacade
