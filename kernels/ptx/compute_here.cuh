// Keeps ptxas from moving the computation of registers below this point, for example behind tensor-core products that run
// meanwhile. An empty asm statement would have no effect, because ptxas does not see it.
#pragma once
#include <stdint.h>

namespace opfacade {

// Computes the four words here, because a store reads them. The store never happens, because `size` is not negative, but ptxas
// does not know that. shared: any shared address that is a multiple of 16.
__device__ __forceinline__ void compute_here(const uint32_t (&words)[4], int size, uint32_t shared) {
  asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %0, 0;\n@p st.volatile.shared.v4.b32 [%1], {%2, %3, %4, %5};\n}"
               ::"r"(size), "r"(shared), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace opfacade
