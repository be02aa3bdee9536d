// The signature of one plan: every rule of opfacade/core/operands.py about shapes, dtypes, devices, strides, alignment and
// overlap, for its operands, and the function that a call ends in. It returns a verdict without a reason: Python's full check
// finds and describes the error. If the two could differ, this one refuses.
//
//   call = host.signature(run, device_type, takes_workspace, workspace_bytes, fields,
//                         [present, written, layout, expandable axes as bits, step, outer, inner, alignment, dtype code, bits,
//                          rank, sizes (-1: any) ...] a field,   (opfacade/core/operands.py says what each means)
//                         scalars ...)
//   call(present fields ..., absent fields ..., workspace or None, launch)   -> kDone, kRefused or kUnknownExtent
//
// run(present fields ..., workspace if it takes one, scalars ...) is that of a kernel library. After kUnknownExtent the caller
// registers the extents of its tensors (storage_extents.h) and calls again. If a later launch of a call with several kernels
// fails, it raises a BegunError: the call must not be repeated, because the first kernel may have written in place.
#pragma once
#include "csrc/common/ffi.h"
#include "csrc/common/launch_recorder.h"
#include "csrc/host/storage_extents.h"

namespace opfacade {

enum Verdict : int64_t { kDone = 0, kRefused = 1, kUnknownExtent = 2, kBegun = 3 };

constexpr int kMaxFields = 32;
constexpr int kMaxRank = 8;
constexpr int kMaxScalars = 24;
constexpr int64_t kWorkspaceAlignment = 256;

enum Layout : int64_t { kRowsLayout = 0, kContiguousLayout = 1, kStridedLayout = 2 };

// The rules of one operand.
struct Field {
  static constexpr int kNumbers = 11;  // fields before the sizes
  bool present, written;
  int64_t layout, expandable, step, outer, inner, alignment;
  DLDataType dtype;
  int rank;
  int64_t sizes[kMaxRank];

  bool has_form(TensorView tensor) const {
    const DLDataType got = tensor.dtype();
    if (got.code != dtype.code || got.bits != dtype.bits || got.lanes != 1 || tensor.ndim() != rank) return false;
    for (int axis = 0; axis < rank; ++axis) {
      if (sizes[axis] >= 0 && tensor.size(axis) != sizes[axis]) return false;
    }
    return true;
  }

  bool has_strides(TensorView tensor) const {
    if (layout == kContiguousLayout) return is_contiguous(tensor);
    const int last = rank - 1;
    const bool rows = layout == kRowsLayout;
    if (rows && rank > 0 && tensor.size(last) > 1 && tensor.stride(last) != 1) return false;
    const int64_t bytes = (tensor.dtype().bits + 7) / 8;
    for (int axis = 0; axis < rank; ++axis) {
      if (tensor.size(axis) <= 1) continue;
      if (tensor.stride(axis) < (expandable >> axis & 1 ? 0 : 1)) return false;
      if (!(rows && axis == last) && tensor.stride(axis) * bytes % step != 0) return false;
    }
    return has_whole(tensor) && (!written || apart(tensor));
  }

  // The stride of `outer` is a multiple of that of `inner`.
  bool has_whole(TensorView tensor) const {
    if (outer < 0 || tensor.size(outer) <= 1 || tensor.size(inner) <= 1) return true;
    const int64_t unit = tensor.stride(inner);
    return tensor.stride(outer) % (unit > 0 ? unit : 1) == 0;
  }

  static bool is_contiguous(TensorView tensor) {
    int64_t expected = 1;
    for (int axis = tensor.ndim() - 1; axis >= 0; --axis) {
      if (tensor.size(axis) > 1 && tensor.stride(axis) != expected) return false;
      expected *= tensor.size(axis);
    }
    return true;
  }

  // Whether no two elements share memory: each stride exceeds the extent of all smaller ones.
  static bool apart(TensorView tensor) {
    int64_t reach = 1, last = 0;
    for (;;) {
      int least = -1;
      bool twice = false;
      for (int axis = 0; axis < tensor.ndim(); ++axis) {
        if (tensor.size(axis) <= 1 || tensor.stride(axis) <= last) continue;
        if (least >= 0 && tensor.stride(axis) == tensor.stride(least)) twice = true;
        if (least < 0 || tensor.stride(axis) < tensor.stride(least)) least = axis, twice = false;
      }
      if (least < 0) return true;
      if (twice || tensor.stride(least) < reach) return false;
      last = tensor.stride(least);
      reach += last * (tensor.size(least) - 1);
    }
  }
};

// From the first byte of a tensor to the last; empty for a tensor without elements.
inline ByteRange range_of(TensorView tensor) {
  const uint64_t first = reinterpret_cast<uint64_t>(tensor.data_ptr());
  int64_t elements = 1;
  for (int axis = 0; axis < tensor.ndim(); ++axis) {
    if (tensor.size(axis) == 0) return {first, first};
    elements += (tensor.size(axis) - 1) * tensor.stride(axis);
  }
  return {first, first + static_cast<uint64_t>(elements * ((tensor.dtype().bits * tensor.dtype().lanes + 7) / 8))};
}

// Counts the launches of a call without storing them.
class LaunchCounter : public LaunchRecorder {
 public:
  LaunchCounter() : LaunchRecorder{kAbi, count} {}
  bool launched() const { return launches_ > 0; }

 private:
  static void* count(LaunchRecorder* self, size_t, ReplayFunction) {
    return ++static_cast<LaunchCounter*>(self)->launches_, nullptr;
  }
  int launches_ = 0;
};

// Converts the raised error to one after which no path repeats the call.
inline void raise_begun() {
  TVMFFIObjectHandle raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  const TVMFFIByteArray* const text = raised == nullptr ? nullptr : &TVMFFIErrorGetCellPtr(raised)->message;
  FfiError error("BegunError");
  error << (text == nullptr ? "a later kernel was not launched" : text->data);
  TVMFFIErrorSetRaisedFromCStr(error.kind(), error.text());
  if (raised != nullptr) TVMFFIObjectDecRef(raised);
}

// A tvm-ffi function, kept alive.
class HeldFunction {
 public:
  HeldFunction(const char* name, const TVMFFIAny& arg) {
    if (arg.type_index != kTVMFFIFunction) throw FfiError("TypeError") << name << ": run expected a function. [OPF-C009]";
    TVMFFIObjectIncRef(function_ = arg.v_obj);
  }
  ~HeldFunction() { TVMFFIObjectDecRef(function_); }
  HeldFunction(const HeldFunction&) = delete;
  int operator()(const TVMFFIAny* args, int count, TVMFFIAny* result) const {
    return TVMFFIFunctionGetCellPtr(function_)->safe_call(function_, args, count, result);
  }

 private:
  TVMFFIObjectHandle function_;
};

class CallSignature {
 public:
  static constexpr int kNumbers = 5;  // arguments before the fields

  CallSignature(const TVMFFIAny* args, int count) : run_("signature", checked_first(args, count)) {
    ArgReader from("signature", args + 1);
    device_type_ = number(from), takes_workspace_ = number(from) != 0, workspace_bytes_ = number(from);
    fields_ = static_cast<int>(number(from));
    int read = kNumbers;
    require_at_most(fields_, kMaxFields);
    for (int i = 0; i < fields_; ++i) {
      if (count < read + Field::kNumbers) refuse_count("signature", read + Field::kNumbers, count);
      read += read_field(from, field_[i]);
      if (count < read) refuse_count("signature", read, count);
      read_sizes(from, field_[i]);
    }
    scalars_ = count - read;
    require_at_most(scalars_, kMaxScalars);
    for (int i = 0; i < scalars_; ++i) scalar_[i] = plain(args[read + i]);
  }

  // Checks a call; if it is valid and `launch` is set, makes it. Returns -1 if the run itself failed. recorder: receives the
  // launches.
  int call(const TVMFFIAny* args, int count, TVMFFIAny* result, LaunchRecorder& recorder) const {
    const bool counted = count == fields_ + 2;
    const bool launches = counted && args[count - 1].v_int64 != 0;
    const int64_t verdict = counted ? judge(args, launches) : kRefused;
    return_int(result, verdict);
    return verdict == kDone && launches ? run(args, recorder) : 0;
  }

 private:
  static const TVMFFIAny& checked_first(const TVMFFIAny* args, int count) {
    if (count < kNumbers) refuse_count("signature", kNumbers, count);
    return args[0];
  }

  int run(const TVMFFIAny* args, LaunchRecorder& recorder) const {
    TVMFFIAny all[kMaxFields + 1 + kMaxScalars + 1], ignored{};
    int at = 0;
    while (at < present_) all[at] = args[at], ++at;
    if (takes_workspace_) all[at++] = args[fields_];
    for (int i = 0; i < scalars_; ++i) all[at++] = scalar_[i];
    all[at] = TVMFFIAny{};
    all[at].type_index = kTVMFFIOpaquePtr;
    all[at++].v_ptr = &recorder;  // CallContext in ffi.h removes it again
    return run_(all, at, &ignored);
  }

  static int64_t number(ArgReader& from) { return ReadArg<int64_t>(from).value; }

  static int64_t positive(ArgReader& from) {
    const int64_t value = number(from);
    if (value < 1) throw FfiError("ValueError") << "signature: " << value << " expected at least 1. [OPF-C031]";
    return value;
  }

  static void require_at_most(int64_t count, int most) {
    if (count < 0 || count > most) throw FfiError("ValueError") << "signature: " << count << " is beyond " << most << ". [OPF-C031]";
  }

  // Stores only values without a reference count.
  static const TVMFFIAny& plain(const TVMFFIAny& scalar) {
    if (scalar.type_index >= kTVMFFIInt && scalar.type_index <= kTVMFFIFloat) return scalar;
    throw FfiError("TypeError") << "signature: a scalar expected an int, a bool or a float. [OPF-C009]";
  }

  // Returns how many arguments the field has.
  int read_field(ArgReader& from, Field& field) {
    field.present = number(from) != 0, field.written = number(from) != 0;
    field.layout = number(from), field.expandable = number(from), field.step = positive(from);
    field.outer = number(from), field.inner = number(from), field.alignment = positive(from);
    field.dtype = {static_cast<uint8_t>(number(from)), 0, 1};
    field.dtype.bits = static_cast<uint8_t>(number(from));
    field.rank = static_cast<int>(number(from));
    require_at_most(field.rank, kMaxRank);
    require_at_most(field.outer + 1, field.rank), require_at_most(field.inner + 1, field.rank);
    present_ += field.present;
    return Field::kNumbers + field.rank;
  }
  static void read_sizes(ArgReader& from, Field& field) {
    for (int axis = 0; axis < field.rank; ++axis) field.sizes[axis] = number(from);
  }

  int64_t judge(const TVMFFIAny* args, bool launches) const {
    TensorView tensors[kMaxFields + 1];
    ByteRange ranges[kMaxFields + 1];
    int known = 0;
    for (int i = 0; i < fields_; ++i) {
      if (!field_[i].present) {
        if (args[i].type_index != kTVMFFINone) return kRefused;
        continue;
      }
      if (!is_tensor(args[i])) return kRefused;
      tensors[known] = TensorView(tensor_of(args[i]));
      ranges[known] = range_of(tensors[known]);
      if (!sound(field_[i], tensors[known], ranges[known], tensors[0].device())) return kRefused;
      ++known;
    }
    const TVMFFIAny& workspace = args[fields_];
    const bool given = workspace.type_index != kTVMFFINone;
    if (!given && workspace_bytes_ > 0 && launches) return kRefused;
    if (given) {
      if (!is_tensor(workspace)) return kRefused;
      tensors[known] = TensorView(tensor_of(workspace));
      ranges[known] = range_of(tensors[known]);
      if (!sound_workspace(tensors[known], ranges[known], tensors[0].device())) return kRefused;
    }
    if (!no_overlap(tensors, ranges, known, given)) return kRefused;
    return StorageExtents::of_process().contain(ranges, known + given) ? kDone : kUnknownExtent;
  }

  bool on_device(TensorView tensor, DLDevice wanted) const {
    return tensor.device().device_type == device_type_ && tensor.device().device_id == wanted.device_id;
  }

  bool sound(const Field& field, TensorView tensor, const ByteRange& range, DLDevice device) const {
    if (!on_device(tensor, device) || !field.has_form(tensor)) return false;
    if (tensor.numel() == 0) return true;
    return range.first != 0 && range.first % field.alignment == 0 && field.has_strides(tensor);
  }

  bool sound_workspace(TensorView tensor, const ByteRange& range, DLDevice device) const {
    const DLDataType dtype = tensor.dtype();
    if (!on_device(tensor, device) || dtype.code != kDLUInt || dtype.bits != 8 || tensor.ndim() != 1) return false;
    if (!Field::is_contiguous(tensor) || tensor.size(0) < workspace_bytes_) return false;
    return workspace_bytes_ == 0 || (range.first != 0 && range.first % kWorkspaceAlignment == 0);
  }

  // A written operand, or the workspace, shares no byte with another operand.
  bool no_overlap(const TensorView* tensors, const ByteRange* ranges, int known, bool workspace) const {
    for (int i = 0, at = 0; i < fields_; ++i) {
      if (!field_[i].present) continue;
      if (workspace && touch(ranges[at], ranges[known])) return false;
      for (int j = i + 1, other = at + 1; j < fields_; ++j) {
        if (!field_[j].present) continue;
        const bool matters = field_[i].written || field_[j].written;
        if (matters && touch(ranges[at], ranges[other]) && !interleaved(tensors[at], tensors[other]) && !columns_apart(tensors[at], tensors[other])) return false;
        ++other;
      }
      ++at;
    }
    return true;
  }

  static bool touch(const ByteRange& a, const ByteRange& b) { return !a.is_empty() && !b.is_empty() && a.meets(b); }

  // Two views of equal shape and strides that share no element: K and V in one buffer.
  static bool interleaved(TensorView a, TensorView b) {
    if (a.ndim() != b.ndim() || a.dtype().bits != b.dtype().bits || a.dtype().bits < 8 || !Field::apart(a)) return false;
    for (int axis = 0; axis < a.ndim(); ++axis) {
      if (a.size(axis) != b.size(axis) || a.stride(axis) != b.stride(axis)) return false;
    }
    const int64_t bytes = a.dtype().bits / 8;
    const int64_t off = static_cast<char*>(b.data_ptr()) - static_cast<char*>(a.data_ptr());
    return off % bytes == 0 && !reachable(a, off / bytes, INT64_MAX);
  }

  // Rows at one stride, where each operand has separate bytes of a row: q and k of one qkv.
  static bool columns_apart(TensorView a, TensorView b) {
    if (a.ndim() == 0 || b.ndim() == 0 || a.dtype().bits < 8 || b.dtype().bits < 8) return false;
    const int64_t step = a.stride(0) * (a.dtype().bits / 8);
    if (step <= 0 || step != b.stride(0) * (b.dtype().bits / 8)) return false;
    const int64_t off = static_cast<char*>(b.data_ptr()) - static_cast<char*>(a.data_ptr()), at = off - floor_div(off, step) * step;
    return row_bytes(a) <= at && at + row_bytes(b) <= step;
  }
  static int64_t row_bytes(TensorView view) {
    int64_t reach = 1;
    for (int axis = 1; axis < view.ndim(); ++axis) reach += (view.size(axis) - 1) * view.stride(axis);
    return reach * (view.dtype().bits / 8);
  }

  // Whether `off` is a sum of d * stride with |d| < size over the axes whose strides are below `below`.
  static bool reachable(TensorView view, int64_t off, int64_t below) {
    int largest = -1;
    int64_t span = 0;
    for (int axis = 0; axis < view.ndim(); ++axis) {
      if (view.size(axis) <= 1 || view.stride(axis) >= below) continue;
      span += (view.size(axis) - 1) * view.stride(axis);
      if (largest < 0 || view.stride(axis) > view.stride(largest)) largest = axis;
    }
    if (largest < 0) return off == 0;
    const int64_t step = view.stride(largest), most = view.size(largest) - 1;
    span -= most * step;
    for (int64_t d = -most > floor_div(off - span, step) ? -most : floor_div(off - span, step); d <= most; ++d) {
      const int64_t rest = off - d * step;
      if (rest < -span) return false;
      if (rest <= span && reachable(view, rest, step)) return true;
    }
    return false;
  }
  static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); }

  HeldFunction run_;
  int64_t device_type_;
  bool takes_workspace_;
  int64_t workspace_bytes_;
  int fields_, scalars_, present_ = 0;
  Field field_[kMaxFields];
  TVMFFIAny scalar_[kMaxScalars];
};

}  // namespace opfacade
