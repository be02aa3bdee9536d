// Shadows kernels/ptx/store.cuh.
#pragma once
#include "tests/emulator/simt.h"

namespace opfacade {

struct StoredAs {
  bool vector, elements;
  StoredAs(bool any, bool aligned) : vector(any && aligned), elements(any && !aligned) {}
};

inline void store_halves_4(char* dst, uint2 v, StoredAs as) {
  if (as.vector && reinterpret_cast<uintptr_t>(dst) % 8 != 0) simt::fail("a store of eight bytes is not aligned");
  if (as.vector || as.elements) memcpy(dst, &v, 8);
}
inline void store_words_4(char* dst, uint4 v, int any) {
  if (any && reinterpret_cast<uintptr_t>(dst) % 16 != 0) simt::fail("a store of sixteen bytes is not aligned");
  if (any) memcpy(dst, &v, 16);
}

template <class V>
void store_vector(void* dst, V v) {
  if (reinterpret_cast<uintptr_t>(dst) % sizeof(V) != 0) simt::fail("a store of a vector is not aligned");
  memcpy(dst, &v, sizeof(V));
}

}  // namespace opfacade
