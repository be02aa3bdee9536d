// Runs the fibers of simt.h: the waits, the time at which asynchronous copies and products are executed, and the order of a
// grid.
#include "tests/emulator/simt.h"

#include "tests/emulator/order.cc"

#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>

#include <deque>
#include <memory>
#include <stdexcept>
#include <vector>

Index threadIdx, blockIdx, gridDim, blockDim;

namespace simt {

namespace {

constexpr int kStack = 192 << 10;

struct Copy { uint32_t dst; const void* src; bool valid; };

struct Product {
  void (*make)(const void*);
  std::vector<uint64_t> kept;
};
using Products = std::vector<Product>;

// A context is started by setcontext and left by _setjmp, which needs no system call.
struct Context {
  ucontext_t begin;
  jmp_buf at;
  bool begun = false;
};

struct Thread : Fiber {
  Context context;
  std::unique_ptr<char[]> stack;
  bool done = false;
  std::vector<Copy> open;                // copies of the open group
  std::deque<std::vector<Copy>> groups;  // closed groups that no thread has waited for
  Products asked;                        // products of the open group
  std::deque<Products> products;         // closed groups that no thread has waited for
  unsigned products_asked = 0;           // number of products ever issued
  Products stored;                       // stores of the open group
  std::deque<Products> stores;           // closed groups that no thread has waited for
};

struct WholeBlock : Block {
  std::vector<unsigned char> memory;
  unsigned char* fence = nullptr;  // the bytes after the shared memory that the launch requested
  bool wrote_outside = false;
  size_t left = 0;  // number of threads that have ended
  std::vector<Warp> all_warps;
  std::vector<std::unique_ptr<Thread>> threads;
};

Context scheduler;

Thread& self() { return *static_cast<Thread*>(current); }

void resume(Context& from, Context& to) {
  if (_setjmp(from.at) != 0) return;
  if (to.begun) _longjmp(to.at, 1);
  to.begun = true;
  setcontext(&to.begin);
}

}  // namespace

Fiber* current;
Cluster* cluster;

void yield() { resume(self().context, scheduler); }
void fail(const char* what) { throw std::runtime_error(what); }

const uint32_t (*exchange(const uint32_t* words, int count))[kLaneWords] {
  Warp& w = warp();
  const unsigned parity = w.parity[lane()] ^= 1;
  memcpy(w.words[parity][lane()], words, count * 4);
  wait(w.meeting, arrive(w.meeting, 32));
  return w.words[parity];
}

void ask_copy(uint32_t dst, const void* src, bool valid) {
  order::write(at(dst), 16);  // the copy may write from now on, until a thread waits for it
  self().open.push_back({dst, src, valid});
}
void close_copies() {
  self().groups.push_back(std::move(self().open));
  self().open.clear();
}
void await_copies(size_t pending) {
  auto& groups = self().groups;
  for (; groups.size() > pending; groups.pop_front())
    for (const Copy& copy : groups.front()) {
      order::write(at(copy.dst), 16);
      if (copy.valid) {
        memcpy(at(copy.dst), copy.src, 16);
      } else {
        memset(at(copy.dst), 0, 16);
      }
    }
}

namespace {

bool coin() {
  const Thread& f = self();
  uint64_t x = (f.block->index.x * 64ull + f.block->index.y * 8 + f.thread / 32) << 32 | f.products_asked;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull, x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return (x >> 40) % 2 != 0;
}
constexpr size_t kFence = 1 << 14;  // bytes
constexpr int kStepsAhead = 64;  // steps of a warp while the others wait, enough for the code between two barriers
constexpr int kLateYields = 2;  // steps of all other threads while a thread waits for a late product

void execute(const Product& product) {
  current->multiplies = true;
  product.make(product.kept.data());
  current->multiplies = false;
}

}  // namespace

void ask_product(void (*make)(const void*), const void* product, size_t bytes) {
  Thread& f = self();
  const bool now = f.asked.empty() && f.products.empty() && coin();
  ++f.products_asked;
  f.asked.push_back({make, std::vector<uint64_t>((bytes + 7) / 8)});
  memcpy(f.asked.back().kept.data(), product, bytes);
  if (!now) return;
  execute(f.asked.back());
  f.asked.pop_back();
}
void ask_store(void (*make)(const void*), const void* store, size_t bytes) {
  auto& open = self().stored;
  open.push_back({make, std::vector<uint64_t>((bytes + 7) / 8)});
  memcpy(open.back().kept.data(), store, bytes);
}
void close_stores() {
  self().stores.push_back(std::move(self().stored));
  self().stored.clear();
}
void await_stores(size_t pending) {
  auto& groups = self().stores;
  for (; groups.size() > pending; groups.pop_front())
    for (const Product& store : groups.front()) store.make(store.kept.data());
}
void close_products() {
  Thread& f = self();
  f.products.push_back(std::move(f.asked));
  f.asked.clear();
}
void await_products(size_t pending) {
  Thread& f = self();
  for (int yields = 0; yields < kLateYields && f.products.size() > pending && !f.products.front().empty(); ++yields) yield();
  while (f.products.size() > pending) {
    const Products group = std::move(f.products.front());
    for (const Product& product : group) execute(product);
    f.products.pop_front();
  }
}

namespace {

void (*entry)(const void*);
const void* entry_params;
void trampoline() {
  entry(entry_params);
  self().done = true;
  yield();
}

void start(WholeBlock& block, int threads, size_t shared_bytes) {
  block.memory.assign(shared_bytes + 1024 + kFence, 0x7f);  // NaN in every format
  block.shared = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(block.memory.data()) + 1023) / 1024 * 1024);
  block.fence = block.shared + shared_bytes;
  block.all_warps.resize((threads + 31) / 32);
  block.warps = block.all_warps.data();
  for (int i = 0; i < threads; ++i) {
    auto thread = std::make_unique<Thread>();
    thread->stack.reset(new char[kStack]);
    thread->block = &block;
    thread->thread = i;
    ucontext_t& context = thread->context.begin;
    getcontext(&context);
    context.uc_stack.ss_sp = thread->stack.get();
    context.uc_stack.ss_size = kStack;
    context.uc_link = nullptr;
    makecontext(&context, trampoline, 0);
    block.threads.push_back(std::move(thread));
  }
}

// A block that writes past the shared memory of its launch ends the launch, as on a GPU. A thread that still reads the shared
// memory of an ended block sees NaN.
void leave(WholeBlock& block) {
  if (++block.left < block.threads.size()) return;
  for (size_t i = 0; i < kFence; ++i) block.wrote_outside |= block.fence[i] != 0x7f;
  memset(block.memory.data(), 0x7f, block.memory.size());
}

// Resumes the threads [first, first + 32) of a CTA that have not ended. Returns false if there are none.
bool step(WholeBlock& block, size_t first) {
  bool alive = false;
  blockIdx = block.index;
  for (size_t i = first; i < block.threads.size() && i < first + 32; ++i) {
    auto& thread = block.threads[i];
    if (thread->done) continue;
    alive = true;
    current = thread.get();
    threadIdx.x = thread->thread;
    resume(scheduler, thread->context);
    if (thread->done) leave(block);
  }
  return alive;
}

// Runs one cluster to its end. Returns false if no thread can continue. backwards: the last warps run first, each as far as
// possible while the others wait, so that a warp that reads too early reads old content.
bool run(Cluster& all, const std::vector<std::unique_ptr<WholeBlock>>& blocks, bool backwards) {
  cluster = &all;
  scheduler.begun = true;
  const size_t warps = (blocks[0]->threads.size() + 31) / 32, count = blocks.size() * warps;
  for (unsigned long idle = 0; idle < 100000;) {
    bool alive = false;
    const unsigned before = all.meeting.round;
    for (size_t n = 0; n < count; ++n) {
      const size_t at = backwards ? count - 1 - n : n;
      for (int steps = 0; steps < (backwards ? kStepsAhead : 1); ++steps) alive |= step(*blocks[at / warps], at % warps * 32);
    }
    if (!alive) return true;
    idle = before == all.meeting.round ? idle + 1 : 0;
  }
  return false;
}

}  // namespace

bool launch(Index grid, int threads, size_t shared_bytes, int cluster_size, void (*kernel)(const void*), const void* params) {
  entry = kernel;
  entry_params = params;
  const char* order = getenv("SIMT_BACKWARDS");
  const bool backwards = order != nullptr && *order == '1';
  gridDim = grid;
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  for (unsigned at = 0; at < grid.x * grid.y * grid.z; at += cluster_size) {
    std::vector<std::unique_ptr<WholeBlock>> blocks;
    std::vector<Block*> pointers;
    for (int i = 0; i < cluster_size; ++i) {
      blocks.push_back(std::make_unique<WholeBlock>());
      pointers.push_back(blocks.back().get());
      const unsigned x = (backwards ? grid.x * grid.y * grid.z - cluster_size - at : at) + i;
      blocks.back()->index = {x % grid.x, x / grid.x % grid.y, x / grid.x / grid.y};
      blocks.back()->number = i;
      start(*blocks.back(), threads, shared_bytes);
    }
    Cluster all;
    all.blocks = pointers.data();
    all.threads = cluster_size * threads;
    order::watch(all, blocks.size(), shared_bytes);
    const bool whole = run(all, blocks, backwards);
    if (const std::string race = order::ended(); !race.empty()) fail(race.c_str());
    if (!whole) return false;
    for (const auto& block : blocks)
      if (block->wrote_outside) return false;
  }
  return true;
}

}  // namespace simt

// Launches the function of this name, which is looked up in a library.
extern "C" bool simt_launch(Index grid, int threads, size_t shared_bytes, int cluster_size, void (*kernel)(const void*), const void* params) {
  return simt::launch(grid, threads, shared_bytes, cluster_size, kernel, params);
}
