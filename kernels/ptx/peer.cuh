// Stores to the memory of other GPUs, and flags that signal their arrival.
#pragma once
#include <stdint.h>

namespace opfacade {

__device__ __forceinline__ uint64_t now_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// Stores a value to peer memory. A peer that reads a flag which this thread stored after fence_system() also sees the value.
template <class T>
__device__ __forceinline__ void push(T* to, T value) {
  *to = value;
}

// Orders all pushes that this thread made, or observed through a barrier, before the flags that it pushes later.
__device__ __forceinline__ void fence_system() { __threadfence_system(); }

// Stores two words of data, each with the flag: a half (eight bytes) contains data in its low word and the flag in its high
// word. A half arrives whole, so a reader that sees the flag also sees the data.
__device__ __forceinline__ void push_flagged(uint4* to, uint32_t first, uint32_t second, uint32_t flag) {
  const uint64_t high = uint64_t{flag} << 32;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(high | first), "l"(high | second) : "memory");
}

// Like push_flagged, as a signal for earlier pushes: the caller calls fence_system() between those pushes and this store.
__device__ __forceinline__ void tell_flagged(uint4* to, uint32_t first, uint32_t second, uint32_t flag) {
  push_flagged(to, first, second, flag);
}

// Loads a line and returns whether both halves contain the flag. If they do, the reader also sees all pushes that the peer
// fenced before it stored the line (acquire).
__device__ __forceinline__ bool told_flagged(const uint4* from, uint32_t flag, uint2& value) {
  uint64_t first, second;
  asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(from) : "memory");
  value = make_uint2(static_cast<uint32_t>(first), static_cast<uint32_t>(second));
  return first >> 32 == flag && second >> 32 == flag;
}

// Like told_flagged without acquire: only the data of the line itself is valid with the flag.
__device__ __forceinline__ bool came_flagged(const uint4* from, uint32_t flag, uint2& value) {
  uint64_t first, second;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(from) : "memory");
  value = make_uint2(static_cast<uint32_t>(first), static_cast<uint32_t>(second));
  return first >> 32 == flag && second >> 32 == flag;
}

// Like came_flagged, but loads only if `wanted`. The load is predicated instead of branched around, so that other loads are in
// flight at the same time.
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

// Clears a line after it was read: it contains no flag until it is pushed again.
__device__ __forceinline__ void forget_flagged(uint4* line) { *line = make_uint4(0, 0, 0, 0); }

// Adds to a counter without returning its value, so that no thread waits.
__device__ __forceinline__ void add_counter(uint64_t* counter, uint64_t more) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(counter), "l"(more) : "memory");
}

// Store and load one, two or four adjacent words by one instruction; probes use them to check which sizes arrive whole.
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
