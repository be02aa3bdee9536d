// The quickest way of a call: the bundle is read here, and a call on tensors that are as and where those of earlier ones were
// is made again from what was kept of it. Each other call goes through the contract; one that comes a second time is kept.
//
//   quick = module.quick(interpreter ..., bundle type, present, fields, guarded, an offset a field, what module.bind takes ...)
//   quick(address of a guard)                       the next guard to ask: a Python function of those tensors that are guarded
//   quick(address of a bundle, of a workspace)      kDone, or anything else for the short way
//
// Called with the GIL, which stands for a lock here.
#pragma once
#include "csrc/common/bundle.h"
#include "csrc/common/contract.h"
#include "csrc/common/driver.h"
#include "csrc/common/recording.h"

namespace opfacade {

// What a tensor was: everything that parameters are made of.
struct TensorForm {
  void set(const DLTensor& tensor) {
    memset(this, 0, sizeof(*this));
    data = tensor.data, device = tensor.device, dtype = tensor.dtype, rank = tensor.ndim, byte_offset = tensor.byte_offset;
    memcpy(shape, tensor.shape, rank * sizeof(int64_t));
    memcpy(strides, tensor.strides, rank * sizeof(int64_t));
  }
  bool is(const DLTensor& tensor) const {
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

// The call of one plan, `owner`, and what was launched for it.
class KeptCall {
 public:
  KeptCall(const void* owner, uint64_t hash) : owner(owner), hash(hash) {}
  KeptCall(const KeptCall&) = delete;
  ~KeptCall() { delete[] form_, delete[] spans_; }

  // Of a call that was sound.
  void remember(const LentTensors& lent) {
    count_ = lent.count, form_ = new TensorForm[count_], spans_ = new Span[count_];
    for (int i = 0; i < count_; ++i) form_[i].set(lent.tensor[i]), spans_[i] = span_of(TensorView(&lent.tensor[i]));
  }

  bool is(const void* plan, uint64_t other, const LentTensors& lent) const {
    if (hash != other || owner != plan || count_ != lent.count) return false;
    for (int i = 0; i < count_; ++i)
      if (!form_[i].is(lent.tensor[i])) return false;
    return true;
  }
  bool rooms_known() {
    const uint64_t now = Rooms::all().lessons();
    if (lesson_ != now && !Contract::rooms_known(spans_, count_)) return false;
    return lesson_ = now, true;
  }

  Recording recording;
  const void* const owner;
  const uint64_t hash;
  int playing = 0;  // by how many threads

 private:
  uint64_t lesson_ = 0;  // at which all of its memory was known
  int count_ = 0;
  TensorForm* form_ = nullptr;
  Span* spans_ = nullptr;
};

// The calls that came last more than once, of all plans of a library together, so that many plans do not hold much: of a model
// with a hundred layers those of some twenty batches, in a few MB.
class KeptCalls {
 public:
  static KeptCalls& all() {
    static KeptCalls calls;
    return calls;
  }

  KeptCall* find(const void* owner, uint64_t hash, const LentTensors& lent) const {
    for (KeptCall* call : sets_[hash % kSets].ways)
      if (call != nullptr && call->is(owner, hash, lent)) return call;
    return nullptr;
  }
  // Whether a call like this came lately. What never comes again is not worth keeping.
  bool came_before(uint64_t hash) {
    uint64_t& last = lately_[hash % kLately];
    if (last == hash) return true;
    return last = hash, false;
  }
  // The oldest of a full set goes, unless somebody is playing it.
  void keep(KeptCall* call) {
    Set& set = sets_[call->hash % kSets];
    KeptCall*& place = set.ways[set.next++ % kWays];
    if (place != nullptr && place->playing != 0) return delete call;
    delete place;
    place = call;
  }
  // Of a plan that is gone: nobody plays them, and another may come to lie where it was.
  void forget(const void* owner) {
    for (Set& set : sets_)
      for (KeptCall*& call : set.ways)
        if (call != nullptr && call->owner == owner) delete call, call = nullptr;
  }

 private:
  static constexpr int kSets = 512, kWays = 4, kLately = 4096;
  struct Set {
    KeptCall* ways[kWays];
    unsigned next;
  };
  Set sets_[kSets] = {};
  uint64_t lately_[kLately] = {};
};

class Quick {
 public:
  static constexpr int kNumbers = Interpreter::kNumbers + BundleLayout::kNumbers;

  Quick(Exported::Body run, Taken& from, const TVMFFIAny* args, int count)
      : python_(from), layout_(from, count - kNumbers), contract_(run, args + numbers(), count - numbers()) {}
  Quick(const Quick&) = delete;
  ~Quick() { KeptCalls::all().forget(this); }

  void ask(void* guard) {
    for (int i = kGuards - 1; i > 0; --i) guards_[i] = guards_[i - 1];
    guards_[0] = guard;
  }

  int64_t call(const void* bundle, void* workspace) {
    LentTensors lent;
    if (!lent.read(python_, layout_, bundle, workspace) || !guarded(lent)) return kRefused;
    const uint64_t hash = hash_of(lent);
    KeptCall* const kept = KeptCalls::all().find(this, hash, lent);
    if (kept == nullptr) return first(hash, lent, workspace);
    return kept->rooms_known() ? again(*kept, lent) : kUnknownRoom;
  }

 private:
  static constexpr int kGuards = 4;

  uint64_t hash_of(const LentTensors& lent) const {
    uint64_t hash = reinterpret_cast<uint64_t>(this) + static_cast<uint64_t>(lent.count);
    for (int i = 0; i < lent.count; ++i) hash = mixed(hash ^ reinterpret_cast<uint64_t>(lent.tensor[i].data));
    return hash;
  }

  int numbers() const { return kNumbers + layout_.fields; }

  bool guarded(const LentTensors& lent) const {
    for (void* guard : guards_)
      if (guard != nullptr && python_.affirms(guard, lent.objects, static_cast<size_t>(lent.guarded))) return true;
    return false;
  }

  // torch's stream of the device of the first tensor. False where it cannot be told.
  bool find_stream(const LentTensors& lent, void*& stream) const {
    stream = nullptr;
    const DLDevice device = lent.tensor[0].device;
    if (device.device_type == kDLCPU) return true;
    if (python_.exchange->current_work_stream(device.device_type, device.device_id, &stream) == 0) return true;
    return python_.clear_error(), false;
  }

  int64_t again(KeptCall& kept, const LentTensors& lent) const {
    void* stream;
    if (!find_stream(lent, stream)) return kRefused;
    ++kept.playing;
    const CUresult result = play(kept.recording, lent.tensor[0].device.device_id, static_cast<CUstream>(stream));
    --kept.playing;
    return result == CUDA_SUCCESS ? kDone : kRefused;
  }
  CUresult play(const Recording& recording, int device, CUstream stream) const {
    const WithoutGil others(python_);
    try {
      const DeviceGuard guard(device);
      return recording.play(Driver::get().cuLaunchKernelEx, stream);
    } catch (const Failure&) {
      return CUDA_ERROR_UNKNOWN;
    }
  }

  int64_t first(uint64_t hash, LentTensors& lent, const void* workspace) {
    void* stream;
    if (!find_stream(lent, stream)) return kRefused;
    const bool given = workspace != python_.none;
    KeptCalls& calls = KeptCalls::all();
    if (!calls.came_before(hash)) return make(lent, given, static_cast<CUstream>(stream), nullptr);
    KeptCall* const call = new KeptCall(this, hash);
    const int64_t verdict = make(lent, given, static_cast<CUstream>(stream), &call->recording);
    if (verdict != kDone || !call->recording.whole()) return delete call, verdict;
    call->remember(lent);
    return calls.keep(call), kDone;
  }
  // As the short way makes it.
  int64_t make(LentTensors& lent, bool workspace, CUstream stream, Recording* recording) const {
    TVMFFIAny args[kMaxFields + 2] = {}, result{};
    for (int i = 0; i < layout_.fields + 1; ++i) {
      const int tensor = i < layout_.present ? i : i == layout_.fields && workspace ? layout_.present : -1;
      args[i].type_index = tensor < 0 ? kTVMFFINone : kTVMFFIDLTensorPtr;
      if (tensor >= 0) args[i].v_ptr = &lent.tensor[tensor];
    }
    args[layout_.fields + 1].type_index = kTVMFFIInt;
    args[layout_.fields + 1].v_int64 = 1;
    const DLDevice device = lent.tensor[0].device;
    const WithoutGil others(python_);
    const Recorded recorded(recording);
    TVMFFIStreamHandle before = nullptr;
    if (device.device_type != kDLCPU && TVMFFIEnvSetStream(device.device_type, device.device_id, stream, &before) != 0) return failed();
    const int status = contract_.call(args, layout_.fields + 2, &result);
    if (device.device_type != kDLCPU && TVMFFIEnvSetStream(device.device_type, device.device_id, before, nullptr) != 0) failed();
    return status == 0 ? result.v_int64 : failed();
  }
  // The short way comes upon it too, and says what it is.
  static int64_t failed() {
    TVMFFIObjectHandle error = nullptr;
    TVMFFIErrorMoveFromRaised(&error);
    if (error != nullptr) TVMFFIObjectDecRef(error);
    return kRefused;
  }

  Interpreter python_;
  BundleLayout layout_;
  Contract contract_;
  void* guards_[kGuards] = {};
};

inline int call_quick(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  Quick& quick = *static_cast<Quick*>(self);
  if (count == 2 && args[0].type_index == kTVMFFIInt && args[1].type_index == kTVMFFIInt) {
    give(result, quick.call(args[0].v_ptr, args[1].v_ptr));
  } else if (count == 1 && args[0].type_index == kTVMFFIInt) {
    quick.ask(args[0].v_ptr);
  }
  return 0;
}

inline int make_quick(const TVMFFIAny* args, int count, TVMFFIAny* result) {
  try {
    if (count < Quick::kNumbers) refuse_count("quick", Quick::kNumbers, count);
    Taken from("quick", args);
    Quick* quick = new Quick(Contract::run_of_library(), from, args, count);
    return give_function(result, quick, call_quick, [](void* self) { delete static_cast<Quick*>(self); });
  } catch (const Failure& failure) {
    TVMFFIErrorSetRaisedFromCStr(failure.kind(), failure.text());
    return -1;
  }
}

// module.quick
#define OPF_EXPORT_QUICK()                                                                                    \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_quick(void*, const TVMFFIAny* args, int32_t n, TVMFFIAny* out) { \
    return ::opfacade::make_quick(args, n, out);                                                              \
  }                                                                                                           \
  static_assert(true, "a semicolon follows")

}  // namespace opfacade
