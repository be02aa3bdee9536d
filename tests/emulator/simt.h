// Device code on the host: one fiber per thread, switched when threads of a warp or a block wait for each other. The emulator
// implements the instructions that the kernels wrap (its kernels/ptx shadows those wrappers), and the order in which effects
// become visible: a copy without a wait has not happened, and a product without a wait may or may not have happened. This
// header has the interface for kernels and bindings; simt.cc, which is compiled once for all of them, runs the fibers.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmath>

#include "tests/emulator/atomics.h"
#include "tests/emulator/functions.h"
#include "tests/emulator/order.h"

#define __device__
// A kernel is compiled only if its address is taken, which builds.py does for launched kernels.
#define __global__ inline
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

using std::max;
using std::min;

struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct Index { unsigned x = 0, y = 0, z = 0; };
extern Index threadIdx, blockIdx, gridDim, blockDim;

namespace simt {

struct Meeting {
  int arrived = 0;
  unsigned round = 0;
};

constexpr int kLaneWords = 16;
struct Warp {
  Meeting meeting;
  uint32_t words[2][32][kLaneWords];
  unsigned parity[32] = {};
};

struct Block {
  Index index;
  unsigned number = 0;  // index of the CTA in its cluster
  unsigned char* shared = nullptr;
  Warp* warps = nullptr;
  Meeting meeting;
  Meeting named[16];
  bool voted = false;  // the vote of __syncthreads_or
};

struct Fiber {
  Block* block = nullptr;
  unsigned thread = 0;
  unsigned cluster_round = 0;  // the round of the cluster barrier in which the thread has arrived; it waits later
  bool gathered = false;  // true if the warp of the thread has converged and the thread has not waited for anything else since
  bool multiplies = false;  // true during an asynchronous product, whose reads end for the whole warp (order.h)
};

struct Cluster {
  Block* const* blocks = nullptr;
  Meeting meeting;
  int threads = 0;
};

extern Fiber* current;
extern Cluster* cluster;

void yield();
[[noreturn]] void fail(const char* what);

// The round in which a thread arrives; it ends when all threads have arrived.
inline unsigned arrive(Meeting& meeting, int expected) {
  const unsigned round = meeting.round;
  if (++meeting.arrived == expected) {
    meeting.arrived = 0;
    order::begin(&meeting, ++meeting.round);
  }
  return round;
}
inline void wait(const Meeting& meeting, unsigned round) {
  current->gathered = false;
  while (meeting.round == round) yield();
}
// A barrier that also orders memory accesses.
inline unsigned publish(Meeting& meeting, int expected) {
  order::release(&meeting, meeting.round);
  return arrive(meeting, expected);
}
inline void meet(Meeting& meeting, int expected) {
  const unsigned round = publish(meeting, expected);
  wait(meeting, round);
  order::acquire(&meeting, round);
}

// An instruction for all lanes of a warp. Fibers have no common time, so each such instruction needs its own __syncwarp before
// it.
inline void come_together(const char* apart) {
  if (!current->gathered) fail(apart);
  current->gathered = false;
}

inline unsigned lane() { return current->thread % 32; }
inline Warp& warp() { return current->block->warps[current->thread / 32]; }

// Gives `count` words of this lane to the warp and returns the words of all lanes.
const uint32_t (*exchange(const uint32_t* words, int count))[kLaneWords];

inline unsigned char* at(uint32_t address) {
  const uint32_t rank = address >> 24;
  Block& block = rank == 0 ? *current->block : *cluster->blocks[rank - 1];
  return block.shared + (address & 0xffffff);
}

template <class T>
uint32_t bits(T value) {
  uint32_t out;
  static_assert(sizeof(T) == 4);
  memcpy(&out, &value, 4);
  return out;
}
template <class T>
T from_bits(uint32_t value) {
  T out;
  memcpy(&out, &value, 4);
  return out;
}

// A copy of 16 bytes, or of zeros if not valid, which is executed when a thread waits for its group.
void ask_copy(uint32_t dst, const void* src, bool valid);
void close_copies();
void await_copies(size_t pending);

// An asynchronous product is executed at its issue or, at the latest, at its wait. A random bit decides, equally for all lanes
// of a warp, and products stay in order. Therefore code that overwrites an operand too early gives wrong results.
void ask_product(void (*make)(const void*), const void* product, size_t bytes);
template <class F>
void ask_product(const F& product) {
  static_assert(__is_trivially_copyable(F) && alignof(F) <= alignof(uint64_t), "kept as bytes");
  ask_product([](const void* kept) { (*static_cast<const F*>(kept))(); }, &product, sizeof(F));
}
void close_products();
void await_products(size_t pending);

// A store from shared memory is executed when a thread waits for its group.
void ask_store(void (*make)(const void*), const void* store, size_t bytes);
template <class F>
void ask_store(const F& store) {
  static_assert(__is_trivially_copyable(F) && alignof(F) <= alignof(uint64_t), "kept as bytes");
  ask_store([](const void* kept) { (*static_cast<const F*>(kept))(); }, &store, sizeof(F));
}
void close_stores();
void await_stores(size_t pending);

// Runs a whole grid, one cluster after the other, with SIMT_BACKWARDS=1 the last one first; clusters extend along x. False if
// no thread can continue.
bool launch(Index grid, int threads, size_t shared_bytes, int cluster_size, void (*kernel)(const void*), const void* params);
template <class F>
bool launch(Index grid, int threads, size_t shared_bytes, int cluster_size, const F& body) {
  return launch(grid, threads, shared_bytes, cluster_size, [](const void* f) { (*static_cast<const F*>(f))(); }, &body);
}

}  // namespace simt

inline void __syncthreads() { simt::meet(simt::current->block->meeting, static_cast<int>(blockDim.x)); }
inline int __syncthreads_or(int vote) {
  bool& voted = simt::current->block->voted;
  voted |= vote != 0;
  __syncthreads();
  const bool result = voted;
  __syncthreads();
  voted = false;
  __syncthreads();
  return result;
}
inline void __syncwarp(unsigned = ~0u) {
  simt::meet(simt::warp().meeting, 32);
  simt::current->gathered = true;
}
inline void __threadfence() {}

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  constexpr int kWords = sizeof(T) / 4;
  uint32_t words[kWords];
  memcpy(words, &value, sizeof(T));
  const auto all = simt::exchange(words, kWords);
  memcpy(&value, all[lane & 31], sizeof(T));
  return value;
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  const unsigned lane = simt::lane();
  return __shfl_sync(mask, value, lane >= delta ? lane - delta : lane);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with) {
  return __shfl_sync(mask, value, simt::lane() ^ with);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  const uint32_t word = vote;
  const auto all = simt::exchange(&word, 1);
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) out |= all[i][0] << i;
  return out;
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) == ~0u; }
inline int __reduce_max_sync(unsigned, int value) {
  const uint32_t word = simt::bits(value);
  const auto all = simt::exchange(&word, 1);
  for (int i = 0; i < 32; ++i) value = std::max(value, simt::from_bits<int>(all[i][0]));
  return value;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  const uint32_t word = value;
  const auto all = simt::exchange(&word, 1);
  for (int i = 0; i < 32; ++i) value = std::max(value, all[i][0]);
  return value;
}
inline int __reduce_add_sync(unsigned, int value) {
  const uint32_t word = simt::bits(value);
  const auto all = simt::exchange(&word, 1);
  int sum = 0;
  for (int i = 0; i < 32; ++i) sum += simt::from_bits<int>(all[i][0]);
  return sum;
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  const uint32_t word = value;
  const auto all = simt::exchange(&word, 1);
  for (int i = 0; i < 32; ++i) value |= all[i][0];
  return value;
}
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value)); }
inline int __ffs(unsigned value) { return __builtin_ffs(static_cast<int>(value)); }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return out;
}
// Rounded once, because the host compiler fuses no operations.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline uint32_t __float2uint_rz(float a) {
  return !(a > 0.f) ? 0 : a >= 4294967296.f ? UINT32_MAX : static_cast<uint32_t>(a);
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }
inline int __float2int_rz(float a) {
  return std::isnan(a) ? 0 : a >= 2147483648.f ? INT32_MAX : a <= -2147483648.f ? INT32_MIN : static_cast<int>(a);
}
inline float __uint_as_float(uint32_t value) { return simt::from_bits<float>(value); }
inline float __int_as_float(int value) { return simt::from_bits<float>(static_cast<uint32_t>(value)); }
inline uint32_t __float_as_uint(float value) { return simt::bits(value); }
template <class T>
T __ldcg(const T* pointer) {
  return *pointer;
}
