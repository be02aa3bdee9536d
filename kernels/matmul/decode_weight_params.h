// Launch sizes of the kernel that decodes a whole weight of any format, shared by the kernel and its binding.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kDecodeThreads = 256;
constexpr int kDecodePart = 32 * 8;   // codes of a column that a warp decodes together
constexpr int kDecodeColumns = 4;     // columns that a warp decodes together

// CTAs per SM that run concurrently; entries of two words need more registers. words: 32-bit words per table entry.
constexpr int decode_blocks(int words) { return words == 1 ? 3 : 2; }
// Bytes of shared memory: for each warp, the table entries of its columns, and one entry for elements of no group.
constexpr int64_t decode_shared(int64_t groups, int64_t words) { return kDecodeThreads / 32 * (groups + 1) * words * kDecodeColumns * 4; }

}  // namespace opfacade
