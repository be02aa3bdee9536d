// Checks of the tensors a binding is given: rank, shape, dtype, device, layout. Every failure names the argument, what
// was expected and what came, ends in a stable code, and happens before anything is launched.
//
//   #include "csrc/common/launch.h"
//   #include "csrc/common/tensor.h"
//   #include "kernels/testing/scale_params.h"
//   OPF_KERNEL(scale_kernel, "scale");
//   void run(TensorView x, TensorView y, double factor) {
//     Dim n("n");
//     Args args("Scale");                                    // the name that errors start with
//     args("x", x).shape({n}).dtype(kF32).contiguous();      // the first tensor settles the device
//     args("y", y).shape({n}).dtype(kF32).contiguous();      // n is bound by x, compared here
//     ScaleParams params{static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), n, float(factor)};
//     scale_kernel.launch(args.device(), Launch(ceil_div(n, 256), 256), params);
//   }
//   TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
//
// Codes: C001 rank, C002 shape, C003 dtype, C004 not a CUDA tensor, C005 another device, C006 layout, C007 null pointer,
// C008 alignment.
#pragma once
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <initializer_list>
#include <sstream>
#include <string>
#include <type_traits>

namespace opfacade {

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

constexpr DLDataType kF32{kDLFloat, 32, 1};
constexpr DLDataType kF16{kDLFloat, 16, 1};
constexpr DLDataType kBF16{kDLBfloat, 16, 1};
constexpr DLDataType kE4M3{kDLFloat8_e4m3fn, 8, 1};
constexpr DLDataType kE5M2{kDLFloat8_e5m2, 8, 1};
constexpr DLDataType kI32{kDLInt, 32, 1};
constexpr DLDataType kI64{kDLInt, 64, 1};
constexpr DLDataType kU8{kDLUInt, 8, 1};

// A dimension that several tensors share: bound by the first that has it, compared by the others.
class Dim {
 public:
  explicit Dim(const char* name) : name_(name) {}
  Dim(const char* name, int64_t value) : name_(name), value_(value) {}
  Dim(const Dim&) = delete;
  operator int64_t() const { return value_; }
  bool match(int64_t size) {
    if (value_ < 0) value_ = size;
    return value_ == size;
  }
  const char* name() const { return name_; }

 private:
  const char* name_;
  int64_t value_ = -1;
};

// One place of an expected shape: a Dim, a constant, or anything at all (kAny).
struct Extent {
  Extent(Dim& dim) : dim(&dim), size(0) {}  // NOLINT: shape({rows, 128}) is the point
  template <class Int, class = std::enable_if_t<std::is_integral<Int>::value>>
  Extent(Int size) : dim(nullptr), size(static_cast<int64_t>(size)) {}  // NOLINT
  bool match(int64_t got) const { return dim ? dim->match(got) : size < 0 || size == got; }
  Dim* dim;
  int64_t size;
};
constexpr int kAny = -1;

class Args;

// The checks of one tensor, each returning itself.
class Arg {
 public:
  Arg(const char* op, const char* name, const TensorView& tensor) : op_(op), name_(name), tensor_(tensor) {}

  const Arg& shape(std::initializer_list<Extent> expected) const {
    if (tensor_.ndim() != static_cast<int>(expected.size())) {
      fail_value("C001", std::to_string(expected.size()) + " dimensions " + text(expected), sizes());
    }
    int axis = 0;
    for (const Extent& extent : expected) {
      if (!extent.match(tensor_.size(axis++))) fail_value("C002", "shape " + text(expected), sizes());
    }
    return *this;
  }

  const Arg& dtype(DLDataType expected) const {
    const DLDataType got = tensor_.dtype();
    if (got.code != expected.code || got.bits != expected.bits || got.lanes != expected.lanes) {
      fail_type("C003", text(expected), text(got));
    }
    return *this;
  }

  // Elements of the last dimension lie side by side; the other strides are free.
  const Arg& last_contiguous() const {
    const int last = tensor_.ndim() - 1;
    if (last >= 0 && tensor_.size(last) > 1 && tensor_.stride(last) != 1) {
      fail_value("C006", "stride 1 in the last dimension", "stride " + std::to_string(tensor_.stride(last)));
    }
    return *this;
  }

  const Arg& contiguous() const {
    int64_t expected = 1;
    for (int axis = tensor_.ndim() - 1; axis >= 0; --axis) {
      if (tensor_.size(axis) > 1 && tensor_.stride(axis) != expected) {
        fail_value("C006", "a contiguous tensor",
                   "stride " + std::to_string(tensor_.stride(axis)) + " in dimension " + std::to_string(axis));
      }
      expected *= tensor_.size(axis);
    }
    return *this;
  }

  const Arg& aligned(int64_t bytes) const {
    const int64_t off = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor_.data_ptr()) % bytes);
    if (off != 0) {
      fail_value("C008", "an address that is a multiple of " + std::to_string(bytes), std::to_string(off) + " past one");
    }
    return *this;
  }

 private:
  friend class Args;

  void non_null() const {
    if (tensor_.data_ptr() == nullptr && tensor_.numel() != 0) fail_value("C007", "data", "a null pointer");
  }

  void on(DLDevice expected) const {
    const DLDevice got = tensor_.device();
    if (got.device_type != kDLCUDA) fail_value("C004", "a CUDA tensor", text(got));
    if (got.device_id != expected.device_id) fail_value("C005", text(expected) + " as the other tensors", text(got));
  }

  static std::string text(DLDevice device) {
    if (device.device_type != kDLCUDA) return device.device_type == kDLCPU ? "a CPU tensor" : "another kind of device";
    return "cuda:" + std::to_string(device.device_id);
  }

  static std::string text(DLDataType dtype) { return tvm::ffi::DLDataTypeToString(dtype); }

  static std::string text(std::initializer_list<Extent> shape) {
    std::ostringstream out;
    const char* comma = "[";
    for (const Extent& extent : shape) {
      out << comma;
      comma = ", ";
      if (extent.dim == nullptr) {
        extent.size < 0 ? out << "any" : out << extent.size;
      } else {
        out << extent.dim->name();
        if (*extent.dim >= 0) out << "=" << static_cast<int64_t>(*extent.dim);
      }
    }
    out << (shape.size() == 0 ? "[]" : "]");
    return out.str();
  }

  std::string sizes() const {
    std::ostringstream out;
    out << "[";
    for (int axis = 0; axis < tensor_.ndim(); ++axis) out << (axis ? ", " : "") << tensor_.size(axis);
    out << "]";
    return out.str();
  }

  std::string message(const char* code, const std::string& expected, const std::string& got) const {
    return std::string(op_) + ".run: " + name_ + " expected " + expected + ", got " + got + ". [OPF-" + code + "]";
  }

  [[noreturn, gnu::cold, gnu::noinline]] void fail_value(const char* code, const std::string& expected,
                                                        const std::string& got) const {
    TVM_FFI_THROW(ValueError) << message(code, expected, got);
    __builtin_unreachable();
  }

  [[noreturn, gnu::cold, gnu::noinline]] void fail_type(const char* code, const std::string& expected,
                                                       const std::string& got) const {
    TVM_FFI_THROW(TypeError) << message(code, expected, got);
    __builtin_unreachable();
  }

  const char* op_;
  const char* name_;
  const TensorView& tensor_;
};

// The tensors of one call. All must be CUDA tensors of one device, which the first settles.
class Args {
 public:
  explicit Args(const char* op) : op_(op) {}

  Arg operator()(const char* name, const TensorView& tensor) {
    if (device_.device_id < 0 && tensor.device().device_type == kDLCUDA) device_ = tensor.device();
    Arg arg(op_, name, tensor);
    arg.on(device_);
    arg.non_null();
    return arg;
  }

  DLDevice device() const { return device_; }

 private:
  const char* op_;
  DLDevice device_{kDLCUDA, -1};
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace opfacade
