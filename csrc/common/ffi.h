// Functions for Python, on tvm-ffi's C ABI only: g++ takes two to three seconds to compile its C++ headers. A function
// that throws an FfiError raises that kind of Python exception with that message.
//
//   int64_t twice(int64_t x) {
//     if (x < 0) throw FfiError("ValueError") << "x expected at least 0, got " << x << ". [OPF-C030]";
//     return 2 * x;
//   }
//   OPF_EXPORT(twice, twice);   // module.twice(x)
//
// Parameters: TensorView, MaybeTensor (a tensor or None), int64_t, double, bool; results: void, int64_t.
// Codes: C009 wrong number or kind of arguments.
#pragma once
#include <stdint.h>
#include <tvm/ffi/extra/c_env_api.h>

namespace opfacade {

// A Python exception: its kind and its message, which is cut off at kCapacity characters.
class FfiError {
 public:
  explicit FfiError(const char* kind) : kind_(kind) {}
  FfiError& operator<<(const char* text);
  FfiError& operator<<(int64_t value);
  FfiError& operator<<(int value) { return *this << static_cast<int64_t>(value); }
  const char* kind() const { return kind_; }
  const char* text() const { return text_; }

 private:
  static constexpr int kCapacity = 1024;
  const char* kind_;
  int length_ = 0;
  char text_[kCapacity] = {};
};

[[gnu::cold]] inline FfiError& FfiError::operator<<(const char* text) {
  while (*text != 0 && length_ + 1 < kCapacity) text_[length_++] = *text++;
  text_[length_] = 0;
  return *this;
}

[[gnu::cold]] inline FfiError& FfiError::operator<<(int64_t value) {
  char digits[24] = {};
  char* first = digits + sizeof(digits) - 1;
  uint64_t rest = value < 0 ? -static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  do {
    *--first = static_cast<char>('0' + rest % 10);
  } while ((rest /= 10) != 0);
  if (value < 0) *--first = '-';
  return *this << static_cast<const char*>(first);
}

// A borrowed tensor: address, shape, strides in elements, dtype, device.
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

// A tensor object is a header followed by a DLTensor.
inline const DLTensor* tensor_of(const TVMFFIAny& arg) {
  if (arg.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(arg.v_ptr);
  return reinterpret_cast<const DLTensor*>(arg.v_obj + 1);
}

// Reads the arguments of one call in order, and refuses an argument of another type.
class ArgReader {
 public:
  ArgReader(const char* function, const TVMFFIAny* args) : function_(function), args_(args) {}

  void read(TensorView& out) {
    const TVMFFIAny& arg = next();
    if (!is_tensor(arg)) refuse(arg, "a tensor");
    out = TensorView(tensor_of(arg));
  }
  void read(MaybeTensor& out) {
    const TVMFFIAny& arg = next();
    if (!is_tensor(arg) && arg.type_index != kTVMFFINone) refuse(arg, "a tensor or None");
    out = MaybeTensor(arg.type_index == kTVMFFINone ? nullptr : tensor_of(arg));
  }
  void read(int64_t& out) {
    const TVMFFIAny& arg = next();
    if (arg.type_index != kTVMFFIInt && arg.type_index != kTVMFFIBool) refuse(arg, "an int");
    out = arg.v_int64;
  }
  void read(bool& out) {
    const TVMFFIAny& arg = next();
    if (arg.type_index != kTVMFFIBool && arg.type_index != kTVMFFIInt) refuse(arg, "a bool");
    out = arg.v_int64 != 0;
  }
  void read(double& out) {
    const TVMFFIAny& arg = next();
    const bool integer = arg.type_index == kTVMFFIInt || arg.type_index == kTVMFFIBool;
    if (arg.type_index != kTVMFFIFloat && !integer) refuse(arg, "a float");
    out = integer ? static_cast<double>(arg.v_int64) : arg.v_float64;
  }

 private:
  const TVMFFIAny& next() { return args_[count_++]; }

  [[noreturn, gnu::cold, gnu::noinline]] void refuse(const TVMFFIAny& arg, const char* expected) const {
    throw FfiError("TypeError") << function_ << ": argument " << count_ << " expected " << expected << ", got "
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
  int count_ = 0;
};

// Reads one argument of the type of its parameter.
template <class T>
struct ReadArg {
  explicit ReadArg(ArgReader& from) { from.read(value); }
  T value = T(0);
};

// A caller in C++ may pass a context after the arguments, as an opaque pointer. It is not an argument of the function: other
// code of this library reads it while the function runs.
class CallContext {
 public:
  CallContext(const TVMFFIAny* args, int32_t& count) : outer_(current()) {
    const bool given = count > 0 && args[count - 1].type_index == kTVMFFIOpaquePtr;
    current() = given ? args[--count].v_ptr : nullptr;
  }
  ~CallContext() { current() = outer_; }
  CallContext(const CallContext&) = delete;

  // Context of this thread; null if the caller passed none.
  static void*& current() {
    static thread_local void* context = nullptr;
    return context;
  }

 private:
  void* outer_;
};

inline void return_int(TVMFFIAny* result, int64_t value) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = value;
}

// Calls a function with arguments read from left to right: braces around constructor arguments fix that order.
struct OrderedCall {
  template <class... P>
  OrderedCall(TVMFFIAny*, void (*function)(P...), ReadArg<P>... values) { function(values.value...); }
  template <class... P>
  OrderedCall(TVMFFIAny* result, int64_t (*function)(P...), ReadArg<P>... values) { return_int(result, function(values.value...)); }
};

[[noreturn, gnu::cold, gnu::noinline]] inline void refuse_count(const char* name, int wanted, int got) {
  throw FfiError("TypeError") << name << " expected " << wanted << " arguments, got " << got << ". [OPF-C009]";
}

// The body of an exported function: returns 0, or -1 after passing the error to tvm-ffi.
template <class R, class... P>
int guarded(const char* name, R (*function)(P...), const TVMFFIAny* args, int count, TVMFFIAny* result) {
  try {
    if (count != static_cast<int>(sizeof...(P))) refuse_count(name, sizeof...(P), count);
    [[maybe_unused]] ArgReader reader(name, args);
    OrderedCall{result, function, ReadArg<P>(reader)...};
    return 0;
  } catch (const FfiError& failure) {
    TVMFFIErrorSetRaisedFromCStr(failure.kind(), failure.text());
    return -1;
  }
}

// int function(const TVMFFIAny* args, int32_t count, TVMFFIAny* result)
#define OPF_EXPORT_RAW(name, function)                                                                          \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* args, int32_t n, TVMFFIAny* out) { \
    const ::opfacade::CallContext context(args, n);                                                             \
    return function(args, n, out);                                                                              \
  }                                                                                                             \
  static_assert(true, "a semicolon follows")

#define OPF_EXPORT(name, function)                                                \
  static int opf_call_##name(const TVMFFIAny* args, int32_t n, TVMFFIAny* out) {  \
    return ::opfacade::guarded(#name, function, args, n, out);                    \
  }                                                                               \
  OPF_EXPORT_RAW(name, opf_call_##name)

}  // namespace opfacade
