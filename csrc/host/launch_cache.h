// Recorded launches of earlier calls, one cache for all plans of a process. A call with the same tensors launches its records
// again. Every function is called with the GIL held, which serves as the lock.
#pragma once
#include <stdlib.h>
#include <string.h>

#include "csrc/host/bundle.h"

namespace opfacade {

// The records of what one call launched.
class Recording : public LaunchRecorder {
 public:
  Recording() : LaunchRecorder{kAbi, allocate_record} {}
  Recording(const Recording&) = delete;
  ~Recording() {
    for (int i = 0; i < count_; ++i) free(records_[i]);
  }

  // A call that launched nothing, or more than fits, cannot be replayed.
  bool is_complete() const { return launched() && !overflowed_; }
  bool launched() const { return count_ > 0; }
  // kDone if all was launched, kRefused if nothing, else kBegun.
  int64_t replay(int device, void* stream) const {
    if (replay_(records_, 1, device, stream) != 0) return kRefused;
    return count_ == 1 || replay_(records_ + 1, count_ - 1, device, stream) == 0 ? kDone : kBegun;
  }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr int kMaxLaunches = 4;

  static void* allocate_record(LaunchRecorder* self, size_t bytes, ReplayFunction replay) {
    return static_cast<Recording*>(self)->append((bytes + kAlignment - 1) / kAlignment * kAlignment, replay);
  }
  void* append(size_t bytes, ReplayFunction replay) {
    if (count_ == kMaxLaunches) overflowed_ = true;
    if (overflowed_) return nullptr;
    replay_ = replay, bytes_ += bytes;
    return records_[count_++] = aligned_alloc(kAlignment, bytes);
  }

  void* records_[kMaxLaunches];
  ReplayFunction replay_ = nullptr;
  size_t bytes_ = 0;
  int count_ = 0;
  bool overflowed_ = false;
};

// All properties of a tensor that kernel parameters depend on.
struct TensorKey {
  void set(const DLTensor& tensor) {
    memset(this, 0, sizeof(*this));
    data = tensor.data, device = tensor.device, dtype = tensor.dtype, rank = tensor.ndim, byte_offset = tensor.byte_offset;
    memcpy(shape, tensor.shape, rank * sizeof(int64_t));
    memcpy(strides, tensor.strides, rank * sizeof(int64_t));
  }
  bool matches(const DLTensor& tensor) const {
    return data == tensor.data && rank == tensor.ndim && byte_offset == tensor.byte_offset &&
           memcmp(&device, &tensor.device, sizeof(device)) == 0 && memcmp(&dtype, &tensor.dtype, sizeof(dtype)) == 0 &&
           memcmp(shape, tensor.shape, rank * sizeof(int64_t)) == 0 && memcmp(strides, tensor.strides, rank * sizeof(int64_t)) == 0;
  }

  void* data;
  DLDevice device;
  DLDataType dtype;
  int32_t rank;
  uint64_t byte_offset;
  int64_t shape[kMaxRank], strides[kMaxRank];
};

// One call of one plan (`owner`), and its launches.
class CachedLaunch {
 public:
  CachedLaunch(const void* owner, uint64_t hash) : owner(owner), hash(hash) {}
  CachedLaunch(const CachedLaunch&) = delete;
  ~CachedLaunch() { delete[] keys_, delete[] ranges_; }

  void set_tensors(const BorrowedTensors& borrowed) {
    count_ = borrowed.count, keys_ = new TensorKey[count_], ranges_ = new ByteRange[count_];
    for (int i = 0; i < count_; ++i)
      keys_[i].set(borrowed.tensor[i]), ranges_[i] = range_of(TensorView(&borrowed.tensor[i]));
  }

  bool matches(const void* plan, uint64_t other, const BorrowedTensors& borrowed) const {
    if (hash != other || owner != plan || count_ != borrowed.count) return false;
    for (int i = 0; i < count_; ++i)
      if (!keys_[i].matches(borrowed.tensor[i])) return false;
    return true;
  }
  bool has_known_extents() {
    StorageExtents& extents = StorageExtents::of_process();
    const uint64_t now = extents.generation();
    if (generation_ != now && !extents.contain(ranges_, count_)) return false;
    return generation_ = now, true;
  }
  size_t bytes() const { return sizeof(*this) + count_ * (sizeof(TensorKey) + sizeof(ByteRange)) + recording.bytes(); }

  Recording recording;
  const void* const owner;
  const uint64_t hash;
  int in_flight = 0;  // threads that are launching it

 private:
  uint64_t generation_ = 0;  // version of the extents when all its memory was registered
  int count_ = 0;
  TensorKey* keys_ = nullptr;
  ByteRange* ranges_ = nullptr;
};

// 1024 sets x 4 ways, 2 to 3 KB per entry, at most kMaxBytes in total. A call is recorded when it is seen twice.
class LaunchCache {
 public:
  static constexpr size_t kMaxBytes = 8 << 20;

  static LaunchCache& of_process() {
    static LaunchCache cache;
    return cache;
  }

  CachedLaunch* find(const void* owner, uint64_t hash, const BorrowedTensors& borrowed) const {
    for (CachedLaunch* entry : sets_[hash % kSets].ways)
      if (entry != nullptr && entry->matches(owner, hash, borrowed)) return entry;
    return nullptr;
  }
  bool seen_recently(uint64_t hash) {
    uint64_t& last = recent_[hash % kRecent];
    if (last == hash) return true;
    return last = hash, false;
  }
  // Evicts round-robin. If the launch of the victim is in flight, it stays and `entry` is dropped instead.
  void insert(CachedLaunch* entry) {
    Set& set = sets_[entry->hash % kSets];
    CachedLaunch*& way = set.ways[set.next++ % kWays];
    if (way != nullptr && way->in_flight != 0) return delete entry;
    erase(way);
    way = entry;
    bytes_ += entry->bytes(), ++entries_;
    for (int i = 0; i < kSets && bytes_ > kMaxBytes; ++i) evict_next_set(entry);
  }
  // The plan is deleted: its entries are no longer used, and another plan may be allocated at its address.
  void erase_all_of(const void* owner) {
    for (Set& set : sets_)
      for (CachedLaunch*& way : set.ways)
        if (way != nullptr && way->owner == owner) erase(way);
  }

  int64_t entries() const { return entries_; }
  int64_t bytes() const { return static_cast<int64_t>(bytes_); }

 private:
  static constexpr int kSets = 1024, kWays = 4, kRecent = 8192;
  struct Set {
    CachedLaunch* ways[kWays];
    unsigned next;
  };

  void erase(CachedLaunch*& way) {
    if (way == nullptr) return;
    bytes_ -= way->bytes(), --entries_;
    delete way;
    way = nullptr;
  }
  void evict_next_set(const CachedLaunch* newest) {
    for (CachedLaunch*& way : sets_[hand_++ % kSets].ways)
      if (way != nullptr && way != newest && way->in_flight == 0) erase(way);
  }

  Set sets_[kSets] = {};
  uint64_t recent_[kRecent] = {};
  size_t bytes_ = 0;
  int64_t entries_ = 0;
  unsigned hand_ = 0;
};

}  // namespace opfacade
