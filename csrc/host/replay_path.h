// The replay of a call: reads the bundle, and launches the records of an earlier call with the same tensors. Any other call
// goes through the signature; a call that is seen twice is recorded.
//
//   replay = host.replay(interpreter ..., bundle type, present, fields, guarded, an offset a field, host.signature's arguments ...)
//   replay(address of a guard)                     adds a guard: a Python function of the guarded tensors; returns the address
//                                                  of the one that it forgets, or 0
//   replay(address of a bundle, of a workspace)    kDone, or another verdict for the fast path; raises BegunError
//
// Called with the GIL held, which serves as the lock; it is released around a launch.
#pragma once
#include "csrc/host/launch_cache.h"

namespace opfacade {

class ReplayPath {
 public:
  static constexpr int kNumbers = Interpreter::kNumbers + BundleLayout::kNumbers;

  ReplayPath(ArgReader& from, const TVMFFIAny* args, int count)
      : python_(from), layout_(from, count - kNumbers), signature_(args + numbers(), count - numbers()) {}
  ReplayPath(const ReplayPath&) = delete;
  ~ReplayPath() { LaunchCache::of_process().erase_all_of(this); }

  void* add_guard(void* guard) {
    void* const oldest = guards_[kGuards - 1];
    for (int i = kGuards - 1; i > 0; --i) guards_[i] = guards_[i - 1];
    guards_[0] = guard;
    return oldest;
  }

  int64_t call(const void* bundle, void* workspace) {
    BorrowedTensors borrowed;
    if (!borrowed.read(python_, layout_, bundle, workspace) || !pass_guards(borrowed)) return kRefused;
    const uint64_t hash = hash_of(borrowed);
    CachedLaunch* const cached = LaunchCache::of_process().find(this, hash, borrowed);
    if (cached == nullptr) return check_and_run(hash, borrowed, workspace);
    return cached->has_known_extents() ? replay(*cached, borrowed) : kUnknownExtent;
  }

 private:
  static constexpr int kGuards = 4;

  uint64_t hash_of(const BorrowedTensors& borrowed) const {
    uint64_t hash = reinterpret_cast<uint64_t>(this) + static_cast<uint64_t>(borrowed.count);
    for (int i = 0; i < borrowed.count; ++i) hash = hashed(hash ^ reinterpret_cast<uint64_t>(borrowed.tensor[i].data));
    return hash;
  }

  int numbers() const { return kNumbers + layout_.fields; }

  bool pass_guards(const BorrowedTensors& borrowed) const {
    for (void* guard : guards_)
      if (guard != nullptr && python_.guard_passes(guard, borrowed.objects, static_cast<size_t>(borrowed.guarded))) return true;
    return false;
  }

  // torch's current stream on the device of the first tensor. False if torch cannot return it.
  bool find_stream(const BorrowedTensors& borrowed, void*& stream) const {
    stream = nullptr;
    const DLDevice device = borrowed.tensor[0].device;
    if (device.device_type == kDLCPU) return true;
    if (python_.exchange->current_work_stream(device.device_type, device.device_id, &stream) == 0) return true;
    return python_.clear_error(), false;
  }

  int64_t replay(CachedLaunch& cached, const BorrowedTensors& borrowed) const {
    void* stream;
    if (!find_stream(borrowed, stream)) return kRefused;
    ++cached.in_flight;
    const int64_t verdict = launch(cached.recording, borrowed.tensor[0].device.device_id, stream);
    --cached.in_flight;
    if (verdict == kBegun) raise_begun();
    return verdict;
  }
  int64_t launch(const Recording& recording, int device, void* stream) const {
    const GilRelease released(python_);
    return recording.replay(device, stream);
  }

  int64_t check_and_run(uint64_t hash, BorrowedTensors& borrowed, const void* workspace) {
    void* stream;
    if (!find_stream(borrowed, stream)) return kRefused;
    const bool given = workspace != python_.py_none;
    LaunchCache& cache = LaunchCache::of_process();
    // Without the GIL another thread may change a tensor in place, so the check, the launch and the record all use this copy.
    TensorForms forms;
    if (!forms.hold(borrowed)) return kRefused;
    if (!cache.seen_recently(hash)) {
      LaunchCounter counter;
      return run(borrowed, given, stream, counter);
    }
    CachedLaunch* const entry = new CachedLaunch(this, hash);
    const int64_t verdict = run(borrowed, given, stream, entry->recording);
    if (verdict != kDone || !entry->recording.is_complete()) return delete entry, verdict;
    entry->set_tensors(borrowed);
    return cache.insert(entry), kDone;
  }
  template <class Recorder>
  int64_t run(BorrowedTensors& borrowed, bool workspace, void* stream, Recorder& recorder) const {
    TVMFFIAny args[kMaxFields + 2] = {}, result{};
    for (int i = 0; i < layout_.fields + 1; ++i) {
      const int tensor = i < layout_.present ? i : i == layout_.fields && workspace ? layout_.present : -1;
      args[i].type_index = tensor < 0 ? kTVMFFINone : kTVMFFIDLTensorPtr;
      if (tensor >= 0) args[i].v_ptr = &borrowed.tensor[tensor];
    }
    args[layout_.fields + 1].type_index = kTVMFFIInt;
    args[layout_.fields + 1].v_int64 = 1;
    const DLDevice device = borrowed.tensor[0].device;
    const GilRelease released(python_);
    TVMFFIStreamHandle before = nullptr;
    if (device.device_type != kDLCPU && TVMFFIEnvSetStream(device.device_type, device.device_id, stream, &before) != 0)
      return drop_error();
    const int status = signature_.call(args, layout_.fields + 2, &result, recorder);
    restore_stream(device, before);
    if (status != 0 && recorder.launched()) return raise_begun(), kBegun;
    return status == 0 ? result.v_int64 : drop_error();
  }
  static void restore_stream(DLDevice device, TVMFFIStreamHandle before) {
    if (device.device_type != kDLCPU && TVMFFIEnvSetStream(device.device_type, device.device_id, before, nullptr) != 0) drop_error();
  }
  // The fast path will meet the same error and report it.
  static int64_t drop_error() {
    TVMFFIObjectHandle error = nullptr;
    TVMFFIErrorMoveFromRaised(&error);
    if (error != nullptr) TVMFFIObjectDecRef(error);
    return kRefused;
  }

  Interpreter python_;
  BundleLayout layout_;
  CallSignature signature_;
  void* guards_[kGuards] = {};
};

}  // namespace opfacade
