// Launch sizes of the kernel that decodes a whole weight, shared by the kernel and its binding.
#pragma once

namespace opfacade {

constexpr int kWidenThreads = 256;
constexpr int kWidenEach = 4;                      // sets of eight codes per thread and iteration
constexpr int kWidenPart = 32 * 8 * kWidenEach;  // codes of a column per warp and iteration
constexpr int kWidenBlocks = 6;                    // CTAs per SM that run concurrently

}  // namespace opfacade
