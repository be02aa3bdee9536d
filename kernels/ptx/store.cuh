// Stores to global memory: vectors that the compiler cannot split, and predicated stores without branches, because they are
// inlined many times per kernel.
#pragma once
#include <stdint.h>

namespace opfacade {

// Predicates of a store: as one vector, or element by element. If both are false, nothing is stored.
struct StoredAs {
  int vector;
  int elements;
  __device__ __forceinline__ StoredAs(bool any, bool aligned) : vector(any && aligned), elements(any && !aligned) {}
};

// Stores four 16-bit elements to global memory.
__device__ __forceinline__ void store_halves_4(char* dst, uint2 v, StoredAs as) {
  asm volatile(
      "{\n.reg .pred w, e;\n.reg .b16 h0, h1, h2, h3;\n"
      "setp.ne.b32 w, %3, 0;\nsetp.ne.b32 e, %4, 0;\n"
      "mov.b32 {h0, h1}, %1;\nmov.b32 {h2, h3}, %2;\n"
      "@w st.global.v2.b32 [%0], {%1, %2};\n"
      "@e st.global.b16 [%0], h0;\n@e st.global.b16 [%0 + 2], h1;\n"
      "@e st.global.b16 [%0 + 4], h2;\n@e st.global.b16 [%0 + 6], h3;\n}"
      ::"l"(dst), "r"(v.x), "r"(v.y), "r"(as.vector), "r"(as.elements)
      : "memory");
}
// Stores four f32; always aligned.
__device__ __forceinline__ void store_words_4(char* dst, uint4 v, int any) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"l"(dst), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w), "r"(any)
               : "memory");
}

// Stores 16 and 8 bytes; always aligned.
__device__ __forceinline__ void store_vector(void* dst, uint4 v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(dst), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void store_vector(void* dst, uint2 v) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(dst), "r"(v.x), "r"(v.y) : "memory");
}

}  // namespace opfacade
