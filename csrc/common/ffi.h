// Calls from Python, on tvm-ffi's C ABI alone: its C++ headers take g++ two to three seconds, this takes none. What
// throws a Failure raises that kind of Python exception, with that message.
//
//   int64_t twice(int64_t x) {
//     if (x < 0) throw Failure("ValueError") << "x expected at least 0, got " << x << ". [OPF-C030]";
//     return 2 * x;
//   }
//   OPF_EXPORT(twice, twice);   // module.twice(x)
//
// Parameters: TensorView, MaybeTensor (a tensor or None), int64_t, double, bool; results: void, int64_t.
// Codes: C009 another number or kind of arguments.
#pragma once
#include <stdint.h>
#include <tvm/ffi/extra/c_env_api.h>

namespace opfacade {

// An exception on its way to Python. Its text has a fixed room: what does not fit is cut off.
class Failure {
 public:
  explicit Failure(const char* kind) : kind_(kind) {}
  Failure& operator<<(const char* text);
  Failure& operator<<(int64_t value);
  Failure& operator<<(int value) { return *this << static_cast<int64_t>(value); }
  const char* kind() const { return kind_; }
  const char* text() const { return text_; }

 private:
  static constexpr int kRoom = 1024;
  const char* kind_;
  int length_ = 0;
  char text_[kRoom] = {};
};

[[gnu::cold]] inline Failure& Failure::operator<<(const char* text) {
  while (*text != 0 && length_ + 1 < kRoom) text_[length_++] = *text++;
  text_[length_] = 0;
  return *this;
}

[[gnu::cold]] inline Failure& Failure::operator<<(int64_t value) {
  char digits[24] = {};
  char* first = digits + sizeof(digits) - 1;
  uint64_t rest = value < 0 ? -static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  do {
    *--first = static_cast<char>('0' + rest % 10);
  } while ((rest /= 10) != 0);
  if (value < 0) *--first = '-';
  return *this << static_cast<const char*>(first);
}

// What a caller holds of a tensor: address, shape, strides in elements, dtype, device. Owns nothing.
class TensorView {
 public:
  explicit TensorView(const DLTensor* tensor = nullptr) : tensor_(tensor) {}
  void* data_ptr() const { return static_cast<char*>(tensor_->data) + tensor_->byte_offset; }
  int ndim() const { return tensor_->ndim; }
  int64_t size(int axis) const { return tensor_->shape[axis]; }
  int64_t stride(int axis) const { return tensor_->strides ? tensor_->strides[axis] : span(axis + 1); }
  DLDataType dtype() const { return tensor_->dtype; }
  DLDevice device() const { return tensor_->device; }
  int64_t numel() const { return span(0); }

 private:
  // Elements of the axes from `axis` on.
  int64_t span(int axis) const {
    int64_t count = 1;
    for (; axis < tensor_->ndim; ++axis) count *= tensor_->shape[axis];
    return count;
  }
  const DLTensor* tensor_;
};

class MaybeTensor {
 public:
  explicit MaybeTensor(const DLTensor* tensor) : tensor_(tensor) {}
  bool has_value() const { return tensor_ != nullptr; }
  TensorView value() const { return TensorView(tensor_); }

 private:
  const DLTensor* tensor_;
};

inline bool is_tensor(const TVMFFIAny& arg) {
  return arg.type_index == kTVMFFITensor || arg.type_index == kTVMFFIDLTensorPtr;
}

// A tensor object is a header and a DLTensor behind it.
inline const DLTensor* tensor_of(const TVMFFIAny& arg) {
  if (arg.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(arg.v_ptr);
  return reinterpret_cast<const DLTensor*>(arg.v_obj + 1);
}

// The arguments of one call, taken in order.
class Taken {
 public:
  Taken(const char* function, const TVMFFIAny* args) : function_(function), args_(args) {}

  void take(TensorView& out) {
    const TVMFFIAny& arg = next();
    if (!is_tensor(arg)) refuse(arg, "a tensor");
    out = TensorView(tensor_of(arg));
  }
  void take(MaybeTensor& out) {
    const TVMFFIAny& arg = next();
    if (!is_tensor(arg) && arg.type_index != kTVMFFINone) refuse(arg, "a tensor or None");
    out = MaybeTensor(arg.type_index == kTVMFFINone ? nullptr : tensor_of(arg));
  }
  void take(int64_t& out) {
    const TVMFFIAny& arg = next();
    if (arg.type_index != kTVMFFIInt && arg.type_index != kTVMFFIBool) refuse(arg, "an int");
    out = arg.v_int64;
  }
  void take(bool& out) {
    const TVMFFIAny& arg = next();
    if (arg.type_index != kTVMFFIBool && arg.type_index != kTVMFFIInt) refuse(arg, "a bool");
    out = arg.v_int64 != 0;
  }
  void take(double& out) {
    const TVMFFIAny& arg = next();
    const bool whole = arg.type_index == kTVMFFIInt || arg.type_index == kTVMFFIBool;
    if (arg.type_index != kTVMFFIFloat && !whole) refuse(arg, "a float");
    out = whole ? static_cast<double>(arg.v_int64) : arg.v_float64;
  }

 private:
  const TVMFFIAny& next() { return args_[taken_++]; }

  [[noreturn, gnu::cold, gnu::noinline]] void refuse(const TVMFFIAny& arg, const char* expected) const {
    throw Failure("TypeError") << function_ << ": argument " << taken_ << " expected " << expected << ", got "
                               << kind(arg) << ". [OPF-C009]";
  }
  static const char* kind(const TVMFFIAny& arg) {
    switch (arg.type_index) {
      case kTVMFFINone: return "None";
      case kTVMFFIInt: return "an int";
      case kTVMFFIBool: return "a bool";
      case kTVMFFIFloat: return "a float";
      case kTVMFFITensor: case kTVMFFIDLTensorPtr: return "a tensor";
      case kTVMFFISmallStr: case kTVMFFIRawStr: case kTVMFFIStr: return "a string";
      default: return "an object of another kind";
    }
  }

  const char* function_;
  const TVMFFIAny* args_;
  int taken_ = 0;
};

// One argument, of whatever type the parameter has.
template <class T>
struct Value {
  explicit Value(Taken& from) { from.take(value); }
  T value = T(0);
};

inline void give(TVMFFIAny* result, int64_t value) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = value;
}

// Calls with values that were made from left to right: a constructor called with braces promises that order.
struct Call {
  template <class... P>
  Call(TVMFFIAny*, void (*function)(P...), Value<P>... values) { function(values.value...); }
  template <class... P>
  Call(TVMFFIAny* result, int64_t (*function)(P...), Value<P>... values) { give(result, function(values.value...)); }
};

[[noreturn, gnu::cold, gnu::noinline]] inline void refuse_count(const char* name, int wanted, int got) {
  throw Failure("TypeError") << name << " expected " << wanted << " arguments, got " << got << ". [OPF-C009]";
}

// The body of an exported function: 0, or -1 with the error left in tvm-ffi.
template <class R, class... P>
int guarded(const char* name, R (*function)(P...), const TVMFFIAny* args, int count, TVMFFIAny* result) {
  try {
    if (count != static_cast<int>(sizeof...(P))) refuse_count(name, sizeof...(P), count);
    [[maybe_unused]] Taken taken(name, args);
    Call{result, function, Value<P>(taken)...};
    return 0;
  } catch (const Failure& failure) {
    TVMFFIErrorSetRaisedFromCStr(failure.kind(), failure.text());
    return -1;
  }
}

// The same of a function of any number of tensors, at most kMost.
template <int kMost>
int guarded_tensors(const char* name, void (*function)(const TensorView*, int), const TVMFFIAny* args, int count) {
  try {
    if (count > kMost) refuse_count(name, kMost, count);
    Taken taken(name, args);
    TensorView tensors[kMost];
    for (int i = 0; i < count; ++i) taken.take(tensors[i]);
    function(tensors, count);
    return 0;
  } catch (const Failure& failure) {
    TVMFFIErrorSetRaisedFromCStr(failure.kind(), failure.text());
    return -1;
  }
}

// An exported function, by its name. Symbols of other libraries may have the same name; this one is never theirs.
class Exported {
 public:
  using Body = int (*)(const TVMFFIAny*, int32_t, TVMFFIAny*);
  Exported(const char* name, Body body) : name_(name), body_(body), next_(first()) { first() = this; }
  Exported(const Exported&) = delete;

  static Body find(const char* name) {
    for (const Exported* one = first(); one != nullptr; one = one->next_) {
      if (__builtin_strcmp(one->name_, name) == 0) return one->body_;
    }
    return nullptr;
  }

 private:
  static const Exported*& first() {
    static const Exported* list = nullptr;
    return list;
  }
  const char* name_;
  Body body_;
  const Exported* next_;
};

#define OPF_EXPORT(name, function)                                                                              \
  static int opf_call_##name(const TVMFFIAny* args, int32_t n, TVMFFIAny* out) {                                \
    return ::opfacade::guarded(#name, function, args, n, out);                                                  \
  }                                                                                                             \
  OPF_EXPORT_CALL(name)

// void function(const TensorView* tensors, int count)
#define OPF_EXPORT_TENSORS(name, function, most)                                                                \
  static int opf_call_##name(const TVMFFIAny* args, int32_t n, TVMFFIAny*) {                                    \
    return ::opfacade::guarded_tensors<most>(#name, function, args, n);                                         \
  }                                                                                                             \
  OPF_EXPORT_CALL(name)

#define OPF_EXPORT_CALL(name)                                                                                   \
  static const ::opfacade::Exported opf_exported_##name(#name, opf_call_##name);                                \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* args, int32_t n, TVMFFIAny* out) { \
    return opf_call_##name(args, n, out);                                                                       \
  }                                                                                                             \
  static_assert(true, "a semicolon follows")

}  // namespace opfacade
