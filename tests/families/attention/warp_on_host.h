// A warp of device code on the host: 32 fibers that meet in every collective. Headers of kernels/ compile with a C++ compiler,
// so their schedules can be tested without a GPU. With threads of the operating system, a test would take a hundred times as
// long.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
using std::max;
using std::min;

struct Index {
  int x, y, z;
};
inline Index threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, gridDim{1, 1, 1};
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline size_t __cvta_generic_to_shared(const void* p) { return reinterpret_cast<size_t>(p); }
inline float __int_as_float(int x) {
  float y;
  std::memcpy(&y, &x, 4);
  return y;
}
inline float __uint_as_float(uint32_t x) { return __int_as_float(static_cast<int>(x)); }

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false;
};
inline Fiber fibers[32];
inline ucontext_t scheduler;
inline std::function<void(int)> body;  // the code that each lane runs
inline int arrived = 0;
inline unsigned meetings = 0;

inline void meet() {
  const unsigned mine = meetings;
  if (++arrived == 32) arrived = 0, ++meetings;
  while (meetings == mine) swapcontext(&fibers[threadIdx.x].context, &scheduler);
}

inline void lane_begins(int lane) {
  body(lane);
  fibers[lane].done = true;
}

// Runs the lanes until all have ended, alternately in ascending and descending order, so that no lane is always first.
inline void run_warp(std::function<void(int)> of_a_lane) {
  constexpr size_t kStack = 256 << 10;
  body = std::move(of_a_lane), arrived = 0;
  for (int lane = 0; lane < 32; ++lane) {
    Fiber& fiber = fibers[lane];
    if (!fiber.stack) fiber.stack = std::make_unique<char[]>(kStack);
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(lane_begins), 1, lane);
  }
  for (unsigned pass = 0, left = 32; left > 0; ++pass) {
    const unsigned met = meetings, before = left;
    for (int i = 0; i < 32; ++i) {
      const int lane = pass % 2 == 0 ? i : 31 - i;
      if (fibers[lane].done) continue;
      threadIdx.x = lane;
      swapcontext(&scheduler, &fibers[lane].context);
      left -= fibers[lane].done;
    }
    if (meetings == met && left == before && pass > 0) {
      std::fputs("lanes wait for others that have ended\n", stderr);
      std::abort();
    }
  }
}

inline int64_t told[32];

// Gives every lane the values of all lanes.
template <class T, class Use>
auto together(T mine, Use use) {
  told[threadIdx.x % 32] = static_cast<int64_t>(mine);
  meet();
  auto result = use();
  meet();
  return result;
}
inline void __syncwarp() { meet(); }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline uint32_t __ballot_sync(uint32_t, bool mine) {
  return together(mine, [] {
    uint32_t all = 0;
    for (int i = 0; i < 32; ++i) all |= static_cast<uint32_t>(told[i] != 0) << i;
    return all;
  });
}
inline int __reduce_add_sync(uint32_t, int mine) {
  return together(mine, [] {
    int64_t sum = 0;
    for (int64_t x : told) sum += x;
    return static_cast<int>(sum);
  });
}
inline int __reduce_max_sync(uint32_t, int mine) {
  return together(mine, [] { return static_cast<int>(*std::max_element(told, told + 32)); });
}
template <class T>
T __shfl_sync(uint32_t, T mine, int lane) {
  return together(mine, [=] { return static_cast<T>(told[lane]); });
}
template <class T>
T __shfl_up_sync(uint32_t, T mine, int step) {
  return together(mine, [=] { return static_cast<T>(told[max(threadIdx.x % 32 - step, 0)]); });
}
template <class T>
T __shfl_xor_sync(uint32_t, T mine, int mask) {
  return together(mine, [=] { return static_cast<T>(told[threadIdx.x % 32 ^ mask]); });
}
