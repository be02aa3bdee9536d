// Sizes of the kernel that decodes a whole weight, shared by the kernel and its binding.
#pragma once

namespace opfacade {

constexpr int kWidenThreads = 256;
constexpr int kWidenEach = 4;                      // parts of eight codes that a thread has at a time
constexpr int kWidenPart = 32 * 8 * kWidenEach;  // codes of a column that a warp has at a time
constexpr int kWidenBlocks = 6;                    // CTAs of an SM, which run at once

}  // namespace opfacade
