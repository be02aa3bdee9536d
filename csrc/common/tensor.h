// Checks of tensors for bindings without a plan (validation, probes): rank, shape, dtype, device, layout. Every message names
// the argument, what was expected and what was passed, and ends in a stable code; nothing is launched before all checks pass.
// Operands of a plan are checked by the host library: see operands.h.
//
//   #include "csrc/common/launch.h"
//   #include "csrc/common/tensor.h"
//   #include "kernels/testing/scale_params.h"
//   OPF_KERNEL(scale_kernel, "scale");
//   void run(TensorView x, TensorView y, double factor) {
//     Dim n("n");
//     Args args("Scale");                                    // the name that errors start with
//     args("x", x).shape({n}).dtype(kF32).contiguous();      // the first tensor determines the device
//     args("y", y).shape({n}).dtype(kF32).contiguous();      // n is bound by x, compared here
//     ScaleParams params{static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), n, float(factor)};
//     scale_kernel.launch(args.device(), Launch(ceil_div(n, 256), 256), params);
//   }
//   OPF_EXPORT(run, run);
//
// Codes: C001 rank, C002 shape, C003 dtype, C004 not a CUDA tensor, C005 another device, C006 layout, C007 null pointer,
// C008 alignment.
#pragma once
#include <initializer_list>

#include "csrc/common/operands.h"

namespace opfacade {

constexpr DLDataType kF64{kDLFloat, 64, 1};
constexpr DLDataType kF32{kDLFloat, 32, 1};
constexpr DLDataType kF16{kDLFloat, 16, 1};
constexpr DLDataType kBF16{kDLBfloat, 16, 1};
constexpr DLDataType kE4M3{kDLFloat8_e4m3fn, 8, 1};
constexpr DLDataType kE5M2{kDLFloat8_e5m2, 8, 1};
constexpr DLDataType kE8M0{kDLFloat8_e8m0fnu, 8, 1};
constexpr DLDataType kI8{kDLInt, 8, 1};
constexpr DLDataType kI16{kDLInt, 16, 1};
constexpr DLDataType kI32{kDLInt, 32, 1};
constexpr DLDataType kI64{kDLInt, 64, 1};
constexpr DLDataType kU8{kDLUInt, 8, 1};
constexpr DLDataType kU16{kDLUInt, 16, 1};
constexpr DLDataType kU32{kDLUInt, 32, 1};
constexpr DLDataType kU64{kDLUInt, 64, 1};
constexpr DLDataType kBool{kDLBool, 8, 1};

// A dimension that several tensors share: the first tensor determines it, the others are compared.
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

// One dimension of an expected shape: a Dim, a constant, or any size (kAny).
struct Extent {
  Extent(Dim& dim) : dim(&dim), size(0) {}  // NOLINT: implicit on purpose, shape({rows, 128})
  Extent(int64_t size) : dim(nullptr), size(size) {}  // NOLINT
  Extent(int size) : dim(nullptr), size(size) {}      // NOLINT
  bool match(int64_t got) const { return dim ? dim->match(got) : size < 0 || size == got; }
  Dim* dim;
  int64_t size;
};
constexpr int kAny = -1;

class Args;

// A binding calls each check a dozen times; inlined, g++ would compile a dozen copies.
#define OPF_NOINLINE [[gnu::noinline]]

// The checks of one tensor; each returns *this.
class Arg {
 public:
  Arg(const char* op, const char* name, TensorView tensor) : op_(op), name_(name), tensor_(tensor) {}

  OPF_NOINLINE const Arg& shape(std::initializer_list<Extent> expected) const {
    if (tensor_.ndim() != static_cast<int>(expected.size())) fail_rank(expected);
    int axis = 0;
    for (const Extent& extent : expected) {
      if (!extent.match(tensor_.size(axis++))) fail_shape(expected);
    }
    return *this;
  }

  OPF_NOINLINE const Arg& dtype(DLDataType expected) const {
    const DLDataType got = tensor_.dtype();
    if (got.code != expected.code || got.bits != expected.bits || got.lanes != expected.lanes) fail_dtype(expected);
    return *this;
  }

  // The last dimension is contiguous; the other strides are free.
  OPF_NOINLINE const Arg& last_contiguous() const {
    const int last = tensor_.ndim() - 1;
    if (last >= 0 && tensor_.size(last) > 1 && tensor_.stride(last) != 1) fail_last(tensor_.stride(last));
    return *this;
  }

  OPF_NOINLINE const Arg& contiguous() const {
    int64_t expected = 1;
    for (int axis = tensor_.ndim() - 1; axis >= 0; --axis) {
      if (tensor_.size(axis) > 1 && tensor_.stride(axis) != expected) fail_contiguous(axis);
      expected *= tensor_.size(axis);
    }
    return *this;
  }

  OPF_NOINLINE const Arg& aligned(int64_t bytes) const {
    const int64_t off = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor_.data_ptr()) % bytes);
    if (off != 0) fail_aligned(bytes, off);
    return *this;
  }

 private:
  friend class Args;

  void non_null() const {
    if (tensor_.data_ptr() == nullptr && tensor_.numel() != 0) fail_null();
  }

  void on(DLDevice expected) const {
    const DLDevice got = tensor_.device();
    if (got.device_type != kDLCUDA || got.device_id != expected.device_id) fail_device(expected);
  }

#define OPF_FAIL [[noreturn, gnu::cold, gnu::noinline]] void
  OPF_FAIL fail_rank(std::initializer_list<Extent> expected) const {
    FfiError failure = start("ValueError") << static_cast<int64_t>(expected.size()) << " dimensions ";
    end(put_sizes(put(failure, expected) << ", got "), "C001");
  }
  OPF_FAIL fail_shape(std::initializer_list<Extent> expected) const {
    FfiError failure = start("ValueError") << "shape ";
    end(put_sizes(put(failure, expected) << ", got "), "C002");
  }
  OPF_FAIL fail_dtype(DLDataType expected) const {
    FfiError failure = start("TypeError");
    end(put(put(failure, expected) << ", got ", tensor_.dtype()), "C003");
  }
  OPF_FAIL fail_device(DLDevice expected) const {
    const DLDevice got = tensor_.device();
    FfiError failure = start("ValueError");
    if (got.device_type != kDLCUDA) end(put(failure << "a CUDA tensor, got ", got), "C004");
    end(put(put(failure, expected) << " as the other tensors, got ", got), "C005");
  }
  OPF_FAIL fail_last(int64_t stride) const {
    end(start("ValueError") << "stride 1 in the last dimension, got stride " << stride, "C006");
  }
  OPF_FAIL fail_contiguous(int axis) const {
    FfiError failure = start("ValueError") << "a contiguous tensor, got stride " << tensor_.stride(axis);
    end(failure << " in dimension " << axis, "C006");
  }
  OPF_FAIL fail_null() const { end(start("ValueError") << "data, got a null pointer", "C007"); }
  OPF_FAIL fail_aligned(int64_t bytes, int64_t off) const {
    end(start("ValueError") << "an address that is a multiple of " << bytes << ", got " << off << " past one", "C008");
  }

  [[gnu::cold]] FfiError start(const char* kind) const { return FfiError(kind) << op_ << ".run: " << name_ << " expected "; }
  OPF_FAIL end(FfiError& failure, const char* code) const { throw failure << ". [OPF-" << code << "]"; }
#undef OPF_FAIL

  static FfiError& put(FfiError& to, DLDevice device) {
    if (device.device_type == kDLCUDA) return to << "cuda:" << device.device_id;
    return to << (device.device_type == kDLCPU ? "a CPU tensor" : "another kind of device");
  }

  static FfiError& put(FfiError& to, DLDataType dtype) {
    TVMFFIAny text{};
    if (TVMFFIDataTypeToString(&dtype, &text) != 0) return to << "another dtype";
    if (text.type_index == kTVMFFISmallStr) return to << text.v_bytes;  // at most seven characters and the terminating zero
    to << reinterpret_cast<const TVMFFIByteArray*>(text.v_obj + 1)->data;
    TVMFFIObjectDecRef(text.v_obj);
    return to;
  }

  static FfiError& put(FfiError& to, std::initializer_list<Extent> shape) {
    const char* comma = "";
    to << "[";
    for (const Extent& extent : shape) {
      to << comma;
      comma = ", ";
      if (extent.dim == nullptr) {
        extent.size < 0 ? to << "any" : to << extent.size;
      } else {
        to << extent.dim->name();
        if (*extent.dim >= 0) to << "=" << static_cast<int64_t>(*extent.dim);
      }
    }
    return to << "]";
  }

  FfiError& put_sizes(FfiError& to) const {
    to << "[";
    for (int axis = 0; axis < tensor_.ndim(); ++axis) to << (axis ? ", " : "") << tensor_.size(axis);
    return to << "]";
  }

  const char* op_;
  const char* name_;
  TensorView tensor_;
};

// The tensors of one call. All must be CUDA tensors of one device, which the first determines.
class Args {
 public:
  explicit Args(const char* op) : op_(op) {}

  OPF_NOINLINE Arg operator()(const char* name, TensorView tensor) {
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

}  // namespace opfacade
