// Hides the origin of a word from the compiler.
#pragma once
#include <stdint.h>

namespace opfacade {

// After this call, the compiler recomputes values that depend on the word instead of keeping earlier results in registers.
__device__ __forceinline__ void forget_origin(uint32_t& word) { asm volatile("" : "+r"(word)); }

}  // namespace opfacade
