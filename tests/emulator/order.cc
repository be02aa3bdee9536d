// Vector clocks of the threads of a cluster, of the phases of barriers, and of every byte of shared memory (order.h). Included
// by simt.cc.
#include "tests/emulator/order.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/emulator/simt.h"

namespace simt::order {

bool watched = false;

namespace {

// For each thread of the cluster, the number of its arrivals that happened before, then the number of copies that it has
// issued.
using Clock = std::vector<uint32_t>;

// The accesses since the last write: the writer and the readers, each with its own time.
struct Byte {
  uint32_t writer = 0, written = 0;  // `written` is 0 if no thread has written the byte
  std::vector<std::pair<uint32_t, uint32_t>> readers;
};
struct Memory {
  const unsigned char* first;
  std::vector<Byte> bytes;
};

std::vector<Clock> clocks;
std::unordered_map<uintptr_t, Clock> phases;
std::vector<Memory> memories;
std::vector<uint32_t> issued;  // number of copies that each thread has issued
bool copies = false;           // true while the current thread issues a copy
std::string found;

void join(Clock& into, const Clock& from) {
  if (into.empty()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}
uintptr_t key(const void* barrier, unsigned phase) { return reinterpret_cast<uintptr_t>(barrier) << 1 | phase; }
size_t threads() { return issued.size(); }
uint32_t number() { return current->block->number * blockDim.x + current->thread; }

void report(uint32_t other, const char* what, size_t byte) {
  if (!found.empty()) return;
  const auto name = [](uint32_t i) {
    const uint32_t thread = i % threads();
    return (i < threads() ? "thread " : "a copy of thread ") + std::to_string(thread % blockDim.x) + " of block " + std::to_string(thread / blockDim.x);
  };
  found = "a race in shared memory: " + name(number()) + what + name(other) + " byte " + std::to_string(byte) + ", and no barrier orders them";
}

// Keeps one entry for each thread, and space for as many more.
void keep_latest(std::vector<std::pair<uint32_t, uint32_t>>& readers) {
  std::sort(readers.begin(), readers.end(), std::greater<>());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  readers.erase(std::unique(readers.begin(), readers.end(), same), readers.end());
  readers.reserve(2 * readers.size() + 4);
}

void look(Byte& byte, size_t at, bool writes) {
  const uint32_t own = number();
  const Clock& clock = clocks[own];
  const bool copied = byte.writer >= threads(), same_warp = writes && !copies && !copied && byte.writer / 32 == own / 32;
  if (byte.written > clock[byte.writer] && !same_warp && !(copied && current->multiplies)) report(byte.writer, writes ? " overwrites what was written by " : " reads what was written by ", at);
  if (writes) {
    for (const auto& [reader, time] : byte.readers)
      if (time > clock[reader]) report(reader, " overwrites what was read by ", at);
    byte.readers.clear();
    byte.writer = copies ? threads() + own : own, byte.written = copies ? issued[own] : clock[own];
    return;
  }
  if (current->multiplies) return;
  auto& readers = byte.readers;
  if (!readers.empty() && readers.back().first == own) return void(readers.back().second = clock[own]);
  if (readers.size() == readers.capacity()) keep_latest(readers);
  readers.push_back({own, clock[own]});
}

}  // namespace

void released(const void* barrier, unsigned phase) {
  Clock& own = clocks[number()];
  join(phases[key(barrier, phase)], own);
  ++own[number()];
}
void acquired(const void* barrier, unsigned phase) {
  const auto known = phases.find(key(barrier, phase));
  if (known != phases.end()) join(clocks[number()], known->second);
}
void copying() { copies = true, ++issued[number()]; }
void copied(const void* barrier, unsigned phase) {
  copies = false;
  Clock& clock = phases[key(barrier, phase)];
  clock.resize(2 * threads());
  clock[threads() + number()] = issued[number()];
}
void begun(const void* barrier, unsigned phase) { phases.erase(key(barrier, phase)); }

void accessed(const void* first, size_t bytes, bool writes) {
  for (Memory& memory : memories) {
    const size_t at = static_cast<const unsigned char*>(first) - memory.first;
    for (size_t i = at; i < at + bytes && i < memory.bytes.size(); ++i) look(memory.bytes[i], i, writes);
  }
}

// Starts to watch a cluster whose threads have not accessed anything.
void watch(const Cluster& all, size_t blocks, size_t shared_bytes) {
  const char* wanted = getenv("SIMT_ORDER");
  watched = wanted != nullptr && *wanted == '1';
  if (!watched) return;
  found.clear(), phases.clear(), memories.clear();
  copies = false;
  issued.assign(all.threads, 0);
  clocks.assign(all.threads, Clock(2 * all.threads));
  for (size_t i = 0; i < clocks.size(); ++i) clocks[i][i] = 1;
  for (size_t i = 0; i < blocks; ++i) memories.push_back({all.blocks[i]->shared, std::vector<Byte>(shared_bytes)});
}
// The first race since `watch`, or an empty string.
std::string ended() {
  watched = false;
  return std::exchange(found, {});
}

}  // namespace simt::order

// The names by which the compiler reports accesses.
extern "C" {
#define SIMT_ACCESS(name, bytes, writes) \
  void __tsan_##name(void* first) {      \
    if (simt::order::watched) simt::order::accessed(first, bytes, writes); \
  }
#define SIMT_ACCESSES(bytes)                       \
  SIMT_ACCESS(read##bytes, bytes, false)           \
  SIMT_ACCESS(write##bytes, bytes, true)           \
  SIMT_ACCESS(unaligned_read##bytes, bytes, false) \
  SIMT_ACCESS(unaligned_write##bytes, bytes, true)
SIMT_ACCESSES(1) SIMT_ACCESSES(2) SIMT_ACCESSES(4) SIMT_ACCESSES(8) SIMT_ACCESSES(16)
void __tsan_read_range(void* first, size_t bytes) {
  if (simt::order::watched) simt::order::accessed(first, bytes, false);
}
void __tsan_write_range(void* first, size_t bytes) {
  if (simt::order::watched) simt::order::accessed(first, bytes, true);
}
// the guard of a static variable
unsigned char __tsan_atomic8_load(const volatile unsigned char* guard, int) { return *guard; }
void __tsan_init() {}
}
