// Device code on the host: one fiber a thread, switched where threads of a warp or a block wait for each other. What is
// emulated is the meaning of the instructions that the kernels wrap (kernels/common here shadows those wrappers), and the
// order in which things become visible: a copy that was not waited for has not happened, and a product that was not waited for
// may have happened or not.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#define __device__
#define __global__
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
inline Index threadIdx, blockIdx, gridDim, blockDim;

namespace simt {

constexpr int kStack = 192 << 10;

struct Copy { uint32_t dst; const void* src; bool valid; };

using Products = std::vector<std::function<void()>>;

struct Block;
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Block* block = nullptr;
  unsigned thread = 0;
  bool done = false;
  std::vector<Copy> open;                 // copies of the group that is not closed yet
  std::deque<std::vector<Copy>> groups;   // closed and not waited for
  Products asked;                         // of the group of products that is not closed yet
  std::deque<Products> products;          // closed and not waited for
  unsigned products_asked = 0;  // ever
  unsigned cluster_round = 0;   // that it has arrived in and waits for later
};

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
  std::vector<unsigned char> memory;
  unsigned char* shared = nullptr;
  Meeting meeting;
  Meeting named[16];
  bool voted = false;  // in __syncthreads_or
  size_t left = 0;     // threads that have ended
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<Fiber>> fibers;
};

struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  Meeting meeting;
  int threads = 0;
};

inline Fiber* current;
inline Cluster* cluster;
inline ucontext_t scheduler;

inline void yield() {
  swapcontext(&current->context, &scheduler);
}

// The round that one arrives in; it is over when all have arrived.
inline unsigned arrive(Meeting& meeting, int expected) {
  const unsigned round = meeting.round;
  if (++meeting.arrived == expected) {
    meeting.arrived = 0;
    ++meeting.round;
  }
  return round;
}
inline void wait(const Meeting& meeting, unsigned round) {
  while (meeting.round == round) yield();
}
inline void meet(Meeting& meeting, int expected) { wait(meeting, arrive(meeting, expected)); }

inline unsigned lane() { return current->thread % 32; }
inline Warp& warp() { return current->block->warps[current->thread / 32]; }

// Shows `count` words to the warp; returns everybody's.
inline const uint32_t (*exchange(const uint32_t* words, int count))[kLaneWords] {
  Warp& w = warp();
  const unsigned parity = w.parity[lane()] ^= 1;
  memcpy(w.words[parity][lane()], words, count * 4);
  meet(w.meeting, 32);
  return w.words[parity];
}

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

// An asynchronous product may be made as soon as it is asked for, or as late as it is waited for: a coin says which, alike for all
// lanes of a warp, and no product overtakes an earlier one. So what takes an operand away too early shows.
inline bool coin() {
  const Fiber& f = *current;
  uint64_t x = (f.block->index.x * 64ull + f.block->index.y * 8 + f.thread / 32) << 32 | f.products_asked;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull, x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return (x >> 40) % 2 != 0;
}
constexpr int kLateYields = 2;  // of all other threads, while a late product is waited for
inline void ask_product(std::function<void()> product) {
  Fiber& f = *current;
  const bool now = f.asked.empty() && f.products.empty() && coin();
  ++f.products_asked;
  if (now) return product();
  f.asked.push_back(std::move(product));
}
inline void close_products() {
  Fiber& f = *current;
  f.products.push_back(std::move(f.asked));
  f.asked.clear();
}
inline void await_products(size_t pending) {
  Fiber& f = *current;
  for (int yields = 0; yields < kLateYields && f.products.size() > pending && !f.products.front().empty(); ++yields) yield();
  while (f.products.size() > pending) {
    const Products group = std::move(f.products.front());
    for (const auto& product : group) product();
    f.products.pop_front();
  }
}

using Entry = void (*)();
inline Entry entry;
inline void trampoline() {
  entry();
  current->done = true;
  yield();
}

inline void start(Block& block, int threads, size_t shared_bytes) {
  block.memory.assign(shared_bytes + 1024, 0x7f);  // NaN in every format
  block.shared = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(block.memory.data()) + 1023) / 1024 * 1024);
  block.warps.resize((threads + 31) / 32);
  for (int i = 0; i < threads; ++i) {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack.reset(new char[kStack]);
    fiber->block = &block;
    fiber->thread = i;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = kStack;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, trampoline, 0);
    block.fibers.push_back(std::move(fiber));
  }
}

// Who still reads the shared memory of a block that has ended sees NaN.
inline void leave(Block& block) {
  if (++block.left == block.fibers.size()) memset(block.memory.data(), 0x7f, block.memory.size());
}

// Runs one cluster to its end; false if no thread can go on.
inline bool run(Cluster& all) {
  cluster = &all;
  for (unsigned long idle = 0; idle < 100000;) {
    bool alive = false;
    const unsigned before = all.meeting.round;
    for (auto& block : all.blocks) {
      blockIdx = block->index;
      for (auto& fiber : block->fibers) {
        if (fiber->done) continue;
        alive = true;
        current = fiber.get();
        threadIdx.x = fiber->thread;
        swapcontext(&scheduler, &fiber->context);
        if (fiber->done) leave(*block);
      }
    }
    if (!alive) return true;
    idle = before == all.meeting.round ? idle + 1 : 0;
  }
  return false;
}

// A whole grid, one cluster after the other, with SIMT_BACKWARDS=1 the last one first; clusters lie along x.
template <class F>
bool launch(Index grid, int threads, size_t shared_bytes, int cluster_size, F body) {
  static F* held;
  held = &body;
  entry = [] { (*held)(); };
  const char* order = getenv("SIMT_BACKWARDS");
  const bool backwards = order != nullptr && *order == '1';
  gridDim = grid;
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  for (unsigned at = 0; at < grid.x * grid.y * grid.z; at += cluster_size) {
    Cluster all;
    all.threads = cluster_size * threads;
    for (int i = 0; i < cluster_size; ++i) {
      all.blocks.push_back(std::make_unique<Block>());
      const unsigned x = (backwards ? grid.x * grid.y * grid.z - cluster_size - at : at) + i;
      all.blocks.back()->index = {x % grid.x, x / grid.x % grid.y, x / grid.x / grid.y};
      start(*all.blocks.back(), threads, shared_bytes);
    }
    if (!run(all)) return false;
  }
  return true;
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
inline void __syncwarp(unsigned = ~0u) { simt::meet(simt::warp().meeting, 32); }
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
inline int __reduce_add_sync(unsigned, int value) {
  const uint32_t word = simt::bits(value);
  const auto all = simt::exchange(&word, 1);
  int sum = 0;
  for (int i = 0; i < 32; ++i) sum += simt::from_bits<int>(all[i][0]);
  return sum;
}
// Threads switch only where they wait, so a plain access is atomic.
inline uint32_t atomicAdd(uint32_t* address, uint32_t value) {
  const uint32_t before = *address;
  *address += value;
  return before;
}
inline uint32_t atomicOr(uint32_t* address, uint32_t value) {
  const uint32_t old = *address;
  *address = old | value;
  return old;
}
inline uint32_t atomicExch(uint32_t* address, uint32_t value) {
  const uint32_t before = *address;
  *address = value;
  return before;
}
inline uint32_t atomicMax(uint32_t* address, uint32_t value) {
  const uint32_t before = *address;
  *address = std::max(before, value);
  return before;
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
// Rounded once: the host fuses nothing.
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
