// Stores to the memory of other GPUs, and the words that say they have arrived.
#pragma once
#include <stdint.h>

namespace opfacade {

__device__ __forceinline__ uint64_t now_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// A peer sees it when it sees a flag that this thread pushes after a fence.
template <class T>
__device__ __forceinline__ void push(T* to, T value) {
  *to = value;
}

// Orders every push that this thread made, or saw at a barrier, before the flags that it pushes next.
__device__ __forceinline__ void fence_system() { __threadfence_system(); }

// Four bytes of data below, and a flag above, in each half: a half arrives whole, so a reader that sees the flag has the data.
__device__ __forceinline__ void push_flagged(uint4* to, uint32_t first, uint32_t second, uint32_t flag) {
  const uint64_t high = uint64_t{flag} << 32;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(high | first), "l"(high | second) : "memory");
}

// The same behind pushes that this thread fenced.
__device__ __forceinline__ void tell_flagged(uint4* to, uint32_t first, uint32_t second, uint32_t flag) {
  push_flagged(to, first, second, flag);
}

// Whether both halves have the flag. A reader that sees it sees all that the peer fenced before.
__device__ __forceinline__ bool told_flagged(const uint4* from, uint32_t flag, uint2& value) {
  uint64_t first, second;
  asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(from) : "memory");
  value = make_uint2(static_cast<uint32_t>(first), static_cast<uint32_t>(second));
  return first >> 32 == flag && second >> 32 == flag;
}

// The same of a line whose data is all that is read.
__device__ __forceinline__ bool came_flagged(const uint4* from, uint32_t flag, uint2& value) {
  uint64_t first, second;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(from) : "memory");
  value = make_uint2(static_cast<uint32_t>(first), static_cast<uint32_t>(second));
  return first >> 32 == flag && second >> 32 == flag;
}

// The same if it is wanted. It has no branch, so that other loads are in flight beside it.
__device__ __forceinline__ bool came_if(bool wanted, const uint4* from, uint32_t flag, uint2& value) {
  uint64_t first = 0, second = 0;
  asm volatile(
      "{\n\t.reg .pred wanted;\n\tsetp.ne.u32 wanted, %3, 0;\n\t"
      "@wanted ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];\n\t}"
      : "+l"(first), "+l"(second)
      : "l"(from), "r"(static_cast<uint32_t>(wanted))
      : "memory");
  value = make_uint2(static_cast<uint32_t>(first), static_cast<uint32_t>(second));
  return first >> 32 == flag && second >> 32 == flag;
}

// A line that was read holds no flag until it is pushed again.
__device__ __forceinline__ void forget_flagged(uint4* line) { *line = make_uint4(0, 0, 0, 0); }

// Nobody waits for it.
__device__ __forceinline__ void add_counter(uint64_t* counter, uint64_t more) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(counter), "l"(more) : "memory");
}

// Stores and loads of some neighbouring words at once, for probes of what arrives whole.
template <int kWords>
__device__ __forceinline__ void push_words(uint32_t* to, const uint32_t (&word)[kWords]) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4, "one store");
  if constexpr (kWords == 1) asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word[0]) : "memory");
  else if constexpr (kWords == 2)
    asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(word[0]), "r"(word[1]) : "memory");
  else
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
}
template <int kWords>
__device__ __forceinline__ void pull_words(const uint32_t* from, uint32_t (&word)[kWords]) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4, "one load");
  if constexpr (kWords == 1) asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word[0]) : "l"(from) : "memory");
  else if constexpr (kWords == 2)
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(from) : "memory");
  else
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "l"(from)
                 : "memory");
}

}  // namespace opfacade
