// A call checked here is not checked in Python: every rule of opfacade/operands.py about shapes, dtypes, devices, strides,
// alignment and overlap, for the operands of one plan. It only says whether a call is sound; what is wrong with one that is
// not, Python finds out and words. Where the two could differ, this one refuses.
//
//   call = module.bind(device_type, takes_workspace, workspace_bytes, fields,
//                      [present, written, layout, expandable axes as bits, step, outer, inner, alignment, dtype code, bits,
//                       rank, sizes (-1: any) ...] a field,   (opfacade/operands.py says what each means)
//                      scalars ...)
//   call(present fields ..., absent fields ..., workspace or None, launch)   -> kDone, kRefused or kUnknownRoom
//
// A tensor does not tell a binding how much memory lies behind it, and a storage can shrink under a view. Python tells, by
// module.vouch(address, bytes, ...), and it is remembered by address: kUnknownRoom asks for it. An address that was freed
// and became that of a smaller storage, itself shrunk under a view of its old size, would pass.
#pragma once
#include "csrc/common/ffi.h"
#include "csrc/common/shared.h"

namespace opfacade {

enum Verdict : int64_t { kDone = 0, kRefused = 1, kUnknownRoom = 2 };

constexpr int kMaxFields = 24;
constexpr int kMaxRank = 6;
constexpr int kMaxScalars = 24;
constexpr int64_t kWorkspaceAlignment = 256;

struct Span {
  uint64_t first, end;
  bool meets(const Span& other) const { return first < other.end && other.first < end; }
};

// Addresses far and evenly apart, as those of the layers of a model, in no order.
inline uint64_t mixed(uint64_t address) {
  for (int i = 0; i < 2; ++i) address = (address ^ address >> 32) * 0xd6e8feb86659fd93u;
  return address ^ address >> 32;
}

// Memory that Python vouched for: from an address on, up to an end. Shared by all plans of a library.
class Rooms {
 public:
  static Rooms& all() {
    static Rooms rooms;
    return rooms;
  }

  // What is used stays: of a full set the half that was used last.
  bool hold(const Span& span) {
    Span* const ways = sets_[set_of(span.first)].ways;
    for (int at = 0; at < kWays; ++at) {
      if (ways[at].first != span.first || span.end > ways[at].end) continue;
      if (at >= kWays / 2) renew(ways, at, ways[at]);
      return true;
    }
    return false;
  }

  // The oldest of a full set goes, and what was known before becomes the newest: what one bundle has just learned stays.
  void learn(uint64_t first, int64_t bytes) {
    Span* const ways = sets_[set_of(first)].ways;
    int at = 0;
    while (at + 1 < kWays && ways[at].first != first) ++at;
    renew(ways, at, {first, first + static_cast<uint64_t>(bytes)});
    atomic_store(lessons_, lessons_ + 1);
  }

  // How much was learned so far: what was known is known until more is.
  uint64_t lessons() const { return atomic_load(lessons_); }

  bool busy = false;  // for Alone

 private:
  static constexpr int kSets = 256, kWays = 8;
  struct Set {
    Span ways[kWays];  // newest first
  };
  static void renew(Span* ways, int at, Span newest) {
    for (; at > 0; --at) ways[at] = ways[at - 1];
    ways[0] = newest;
  }
  static int set_of(uint64_t first) { return static_cast<int>(mixed(first) % kSets); }

  Set sets_[kSets] = {};
  uint64_t lessons_ = 1;
};

enum Layout : int64_t { kRowsLayout = 0, kContiguousLayout = 1, kStridedLayout = 2 };

// What one operand must be.
struct Field {
  static constexpr int kNumbers = 11;  // in front of its sizes
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

  // Every stride steps over all that the smaller ones span.
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

// From the first byte of a tensor to the last; nothing of an empty one.
inline Span span_of(TensorView tensor) {
  const uint64_t first = reinterpret_cast<uint64_t>(tensor.data_ptr());
  int64_t elements = 1;
  for (int axis = 0; axis < tensor.ndim(); ++axis) {
    if (tensor.size(axis) == 0) return {first, first};
    elements += (tensor.size(axis) - 1) * tensor.stride(axis);
  }
  return {first, first + static_cast<uint64_t>(elements * ((tensor.dtype().bits * tensor.dtype().lanes + 7) / 8))};
}

// The rules of one plan, and the scalars of its launches.
class Contract {
 public:
  Contract(Exported::Body run, const TVMFFIAny* args, int count) : run_(run) {
    Taken from("bind", args);
    if (count < 4) refuse_count("bind", 4, count);
    device_type_ = number(from), takes_workspace_ = number(from) != 0, workspace_bytes_ = number(from);
    fields_ = static_cast<int>(number(from));
    int read = 4;
    require_room(fields_, kMaxFields);
    for (int i = 0; i < fields_; ++i) {
      if (count < read + Field::kNumbers) refuse_count("bind", read + Field::kNumbers, count);
      read += read_field(from, field_[i]);
      if (count < read) refuse_count("bind", read, count);
      read_sizes(from, field_[i]);
    }
    scalars_ = count - read;
    require_room(scalars_, kMaxScalars);
    for (int i = 0; i < scalars_; ++i) scalar_[i] = plain(args[read + i]);
  }

  static Exported::Body run_of_library() {
    const Exported::Body run = Exported::find("run");
    if (run == nullptr) throw Failure("RuntimeError") << "bind: this library has no run. [OPF-C031]";
    return run;
  }

  // Checks a call and, if it is sound and asked for, makes it. -1 where the run itself failed.
  int call(const TVMFFIAny* args, int count, TVMFFIAny* result) const {
    const bool sound_count = count == fields_ + 2;
    const bool launches = sound_count && args[count - 1].v_int64 != 0;
    const int64_t verdict = sound_count ? judge(args, launches) : kRefused;
    give(result, verdict);
    if (verdict != kDone || !launches) return 0;
    TVMFFIAny all[kMaxFields + 1 + kMaxScalars];
    int at = 0;
    while (at < present_) all[at] = args[at], ++at;
    if (takes_workspace_) all[at++] = args[fields_];
    for (int i = 0; i < scalars_; ++i) all[at++] = scalar_[i];
    TVMFFIAny ignored{};
    return run_(all, at, &ignored);
  }

  static bool rooms_known(const Span* spans, int count) {
    Rooms& rooms = Rooms::all();
    const Alone alone(rooms.busy);
    for (int i = 0; i < count; ++i) {
      if (spans[i].first < spans[i].end && !rooms.hold(spans[i])) return false;
    }
    return true;
  }

 private:
  static int64_t number(Taken& from) { return Value<int64_t>(from).value; }

  static int64_t positive(Taken& from) {
    const int64_t value = number(from);
    if (value < 1) throw Failure("ValueError") << "bind: " << value << " expected at least 1. [OPF-C031]";
    return value;
  }

  static void require_room(int64_t count, int most) {
    if (count < 0 || count > most) throw Failure("ValueError") << "bind: " << count << " is beyond " << most << ". [OPF-C031]";
  }

  // What is kept without being counted.
  static const TVMFFIAny& plain(const TVMFFIAny& scalar) {
    if (scalar.type_index >= kTVMFFIInt && scalar.type_index <= kTVMFFIFloat) return scalar;
    throw Failure("TypeError") << "bind: a scalar expected an int, a bool or a float. [OPF-C009]";
  }

  // How many arguments the field has.
  int read_field(Taken& from, Field& field) {
    field.present = number(from) != 0, field.written = number(from) != 0;
    field.layout = number(from), field.expandable = number(from), field.step = positive(from);
    field.outer = number(from), field.inner = number(from), field.alignment = positive(from);
    field.dtype = {static_cast<uint8_t>(number(from)), 0, 1};
    field.dtype.bits = static_cast<uint8_t>(number(from));
    field.rank = static_cast<int>(number(from));
    require_room(field.rank, kMaxRank);
    require_room(field.outer + 1, field.rank), require_room(field.inner + 1, field.rank);
    present_ += field.present;
    return Field::kNumbers + field.rank;
  }
  static void read_sizes(Taken& from, Field& field) {
    for (int axis = 0; axis < field.rank; ++axis) field.sizes[axis] = number(from);
  }

  int64_t judge(const TVMFFIAny* args, bool launches) const {
    TensorView tensors[kMaxFields + 1];
    Span spans[kMaxFields + 1];
    int known = 0;
    for (int i = 0; i < fields_; ++i) {
      if (!field_[i].present) {
        if (args[i].type_index != kTVMFFINone) return kRefused;
        continue;
      }
      if (!is_tensor(args[i])) return kRefused;
      tensors[known] = TensorView(tensor_of(args[i]));
      spans[known] = span_of(tensors[known]);
      if (!sound(field_[i], tensors[known], spans[known], tensors[0].device())) return kRefused;
      ++known;
    }
    const TVMFFIAny& workspace = args[fields_];
    const bool given = workspace.type_index != kTVMFFINone;
    if (!given && workspace_bytes_ > 0 && launches) return kRefused;
    if (given) {
      if (!is_tensor(workspace)) return kRefused;
      tensors[known] = TensorView(tensor_of(workspace));
      spans[known] = span_of(tensors[known]);
      if (!sound_workspace(tensors[known], spans[known], tensors[0].device())) return kRefused;
    }
    if (!no_overlap(tensors, spans, known, given)) return kRefused;
    return rooms_known(spans, known + given) ? kDone : kUnknownRoom;
  }

  bool on_device(TensorView tensor, DLDevice wanted) const {
    return tensor.device().device_type == device_type_ && tensor.device().device_id == wanted.device_id;
  }

  bool sound(const Field& field, TensorView tensor, const Span& span, DLDevice device) const {
    if (!on_device(tensor, device) || !field.has_form(tensor)) return false;
    if (tensor.numel() == 0) return true;
    return span.first != 0 && span.first % field.alignment == 0 && field.has_strides(tensor);
  }

  bool sound_workspace(TensorView tensor, const Span& span, DLDevice device) const {
    const DLDataType dtype = tensor.dtype();
    if (!on_device(tensor, device) || dtype.code != kDLUInt || dtype.bits != 8 || tensor.ndim() != 1) return false;
    if (!Field::is_contiguous(tensor) || tensor.size(0) < workspace_bytes_) return false;
    return workspace_bytes_ == 0 || (span.first != 0 && span.first % kWorkspaceAlignment == 0);
  }

  // What is written, the workspace included, shares no byte with anything else.
  bool no_overlap(const TensorView* tensors, const Span* spans, int known, bool workspace) const {
    for (int i = 0, at = 0; i < fields_; ++i) {
      if (!field_[i].present) continue;
      if (workspace && touch(spans[at], spans[known])) return false;
      for (int j = i + 1, other = at + 1; j < fields_; ++j) {
        if (!field_[j].present) continue;
        const bool matters = field_[i].written || field_[j].written;
        if (matters && touch(spans[at], spans[other]) && !interleaved(tensors[at], tensors[other])) return false;
        ++other;
      }
      ++at;
    }
    return true;
  }

  static bool touch(const Span& a, const Span& b) { return a.first < a.end && b.first < b.end && a.meets(b); }

  // Two views of one form that share no element: K and V in one buffer.
  static bool interleaved(TensorView a, TensorView b) {
    if (a.ndim() != b.ndim() || a.dtype().bits != b.dtype().bits || a.dtype().bits < 8 || !Field::apart(a)) return false;
    for (int axis = 0; axis < a.ndim(); ++axis) {
      if (a.size(axis) != b.size(axis) || a.stride(axis) != b.stride(axis)) return false;
    }
    const int64_t bytes = a.dtype().bits / 8;
    const int64_t off = static_cast<char*>(b.data_ptr()) - static_cast<char*>(a.data_ptr());
    return off % bytes == 0 && !reachable(a, off / bytes, INT64_MAX);
  }

  // Is off a sum of d * stride with |d| < size over the axes whose strides are below `below`?
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

  Exported::Body run_;
  int64_t device_type_;
  bool takes_workspace_;
  int64_t workspace_bytes_;
  int fields_, scalars_, present_ = 0;
  Field field_[kMaxFields];
  TVMFFIAny scalar_[kMaxScalars];
};

inline int call_bound(void* contract, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  return static_cast<const Contract*>(contract)->call(args, count, result);
}

// A function that owns `self`.
inline int give_function(TVMFFIAny* result, void* self, TVMFFISafeCallType call, void (*forget)(void*)) {
  TVMFFIObjectHandle function = nullptr;
  if (TVMFFIFunctionCreate(self, call, forget, &function) != 0) return forget(self), -1;
  result->type_index = kTVMFFIFunction;
  result->zero_padding = 0;
  result->v_obj = static_cast<TVMFFIObject*>(function);
  return 0;
}

inline int bind(const TVMFFIAny* args, int count, TVMFFIAny* result) {
  try {
    Contract* contract = new Contract(Contract::run_of_library(), args, count);
    return give_function(result, contract, call_bound, [](void* self) { delete static_cast<Contract*>(self); });
  } catch (const Failure& failure) {
    TVMFFIErrorSetRaisedFromCStr(failure.kind(), failure.text());
    return -1;
  }
}

inline int vouch(const TVMFFIAny* args, int count) {
  Rooms& rooms = Rooms::all();
  const Alone alone(rooms.busy);
  for (int i = 0; i + 1 < count; i += 2) rooms.learn(static_cast<uint64_t>(args[i].v_int64), args[i + 1].v_int64);
  return 0;
}

// module.bind and module.vouch
#define OPF_EXPORT_BIND()                                                                                       \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_bind(void*, const TVMFFIAny* args, int32_t n, TVMFFIAny* out) {   \
    return ::opfacade::bind(args, n, out);                                                                      \
  }                                                                                                             \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_vouch(void*, const TVMFFIAny* args, int32_t n, TVMFFIAny*) {      \
    return ::opfacade::vouch(args, n);                                                                          \
  }                                                                                                             \
  static_assert(true, "a semicolon follows")

}  // namespace opfacade
