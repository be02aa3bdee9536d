// Reads unaligned vectors from memory of exactly their size: the address sanitizer ends the program if a byte outside is read.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "tests/emulator/simt.h"
#include "kernels/elementwise/pack.cuh"

using namespace opfacade;

extern "C" void __asan_poison_memory_region(const volatile void* memory, size_t bytes);
extern "C" void __asan_unpoison_memory_region(const volatile void* memory, size_t bytes);

template <class T, int kCount>
int wrong_of(int elements, int before) {
  using Vector = Pack<T, kCount>;
  using Bits = typename Vector::Bits;
  char* const memory = static_cast<char*>(malloc((before + elements) * sizeof(Bits)));
  Bits* const base = reinterpret_cast<Bits*>(memory) + before;
  const size_t beside = before * sizeof(Bits);
  __asan_poison_memory_region(memory, beside);
  for (int i = 0; i < elements; ++i) base[i] = static_cast<Bits>(3 * i + 1);
  int wrong = 0;
  for (int at = 0; at < elements; ++at) {
    for (int count = 0; count <= kCount && at + count <= elements; ++count) {
      Vector found;
      found.load_anywhere(base, at, elements, count);
      if (Vector::touches_outside(base, at, elements, count)) continue;
      for (int i = 0; i < count; ++i) wrong += found.bits(i) != base[at + i];
    }
  }
  // Reads some elements of a vector that may begin before the first element.
  for (int at = 1 - kCount; at < elements; ++at) {
    for (int from = at < 0 ? -at : 0; from < kCount; ++from) {
      for (int to = from; to <= kCount && at + to <= elements; ++to) {
        Vector found;
        found.load_some(base, at, 1, elements, from, to);
        for (int i = from; i < to; ++i) wrong += found.bits(i) != base[at + i];
      }
    }
  }
  // Far from both ends, every vector can be loaded in this way.
  for (int at = 16; at + 32 <= elements; ++at) wrong += Vector::touches_outside(base, at, elements, kCount);
  __asan_unpoison_memory_region(memory, beside);
  free(memory);
  return wrong;
}

// Loads a whole aligned vector from memory of exactly its size, and stores it to other memory of that size.
template <class T, int kCount>
int wrong_whole() {
  using Vector = Pack<T, kCount>;
  using Bits = typename Vector::Bits;
  Bits* const from = static_cast<Bits*>(malloc(kCount * sizeof(Bits)));
  Bits* const to = static_cast<Bits*>(malloc(kCount * sizeof(Bits)));
  for (int i = 0; i < kCount; ++i) from[i] = static_cast<Bits>(7 * i + 3);
  Vector found;
  found.load(from, 0, true, kCount);
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += found.bits(i) != from[i];
  const auto stored = [&] {
    for (int i = 0; i < kCount; ++i) wrong += to[i] != from[i];
    memset(to, 0, kCount * sizeof(Bits));
  };
  memset(to, 0, kCount * sizeof(Bits));
  found.store(to, 0, true, kCount);
  stored();
  found.store_some(to, 0, 0, kCount);
  stored();
  free(from);
  free(to);
  return wrong;
}

template <class T, int kCount>
int wrong_anywhere() {
  int wrong = wrong_whole<T, kCount>();
  for (int before = 0; before < 16; ++before)
    for (int elements : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 80}) wrong += wrong_of<T, kCount>(elements, before);
  return wrong;
}

int main() {
  const int wrong = wrong_anywhere<E4M3, 4>() + wrong_anywhere<E4M3, 8>() + wrong_anywhere<BF16, 4>() + wrong_anywhere<BF16, 8>() +
                    wrong_anywhere<F32, 4>() + wrong_anywhere<F32, 8>() + wrong_anywhere<F64, 2>() + wrong_anywhere<F64, 8>() +
                    wrong_whole<F64, 1>() + wrong_whole<F32, 1>() + wrong_whole<F32, 3>() + wrong_whole<BF16, 12>();
  printf("%d elements are wrong\n", wrong);
  return wrong != 0;
}
