// Words whose origin the compiler does not know.
#pragma once
#include <stdint.h>

namespace opfacade {

// Values computed of the word before are computed again after, instead of kept in registers.
__device__ __forceinline__ void forget_origin(uint32_t& word) { asm volatile("" : "+r"(word)); }

}  // namespace opfacade
