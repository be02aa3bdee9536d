// A warp of device code on the host: 32 threads that meet in every collective, so that headers of kernels/ compile with a
// C++ compiler and their schedules can be tested without a GPU.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
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
inline thread_local Index threadIdx{0, 0, 0};
inline Index blockIdx{0, 0, 0}, gridDim{1, 1, 1};
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

inline std::barrier<> meeting(32);
inline int64_t told[32];

// What every lane says, in every lane.
template <class T, class Use>
auto together(T mine, Use use) {
  told[threadIdx.x % 32] = static_cast<int64_t>(mine);
  meeting.arrive_and_wait();
  auto result = use();
  meeting.arrive_and_wait();
  return result;
}
inline void __syncwarp() { meeting.arrive_and_wait(); }
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
