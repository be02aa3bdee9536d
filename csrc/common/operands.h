// The arguments of a kernel's `run`: tensors in the order of the descriptor's operands(), the workspace if there is one, scalars.
//
// A binding turns them into kernel parameters and launches. It checks no tensor: the host library checks each call against
// operands() (csrc/host/call_signature.h), at every level of validation.
//
//   void run(Operands& in) {
//     ScaleParams params{};
//     const TensorView x = in.tensor();
//     params.x = data_of<const float>(x), params.y = in.data<float>();
//     params.factor = static_cast<float>(in.real());
//     scale_kernel.launch(in.finish(), Launch(ceil_div(x.size(0), 256), 256), params);
//   }
//   OPF_EXPORT_RUN(run);
//
// Code C009: wrong number or kind of arguments.
#pragma once
#include "csrc/common/ffi.h"

namespace opfacade {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
T* data_of(const TensorView& view) {
  return static_cast<T*>(view.data_ptr());
}

class Operands {
 public:
  Operands(const TVMFFIAny* args, int count) : reader_("run", args), count_(count) {}
  Operands(const Operands&) = delete;

  [[gnu::noinline]] TensorView tensor() {
    const TensorView found = next<TensorView>();
    if (read_ == 1) device_ = found.device();
    return found;
  }
  template <class T>
  T* data() { return data_of<T>(tensor()); }
  [[gnu::noinline]] int64_t integer() { return next<int64_t>(); }
  [[gnu::noinline]] double real() { return next<double>(); }

  int count() const { return count_; }
  // After the last argument: refuses further arguments, and returns the device of the tensors.
  DLDevice finish() const {
    if (read_ != count_) refuse_count("run", read_, count_);
    return device_;
  }

 private:
  template <class T>
  T next() {
    if (++read_ > count_) refuse_count("run", read_, count_);
    T value{};
    reader_.read(value);
    return value;
  }

  ArgReader reader_;
  int count_, read_ = 0;
  DLDevice device_{kDLCUDA, -1};
};

inline int guarded_run(void (*run)(Operands&), const TVMFFIAny* args, int count) {
  try {
    Operands in(args, count);
    run(in);
    return 0;
  } catch (const FfiError& error) {
    TVMFFIErrorSetRaisedFromCStr(error.kind(), error.text());
    return -1;
  }
}

#define OPF_EXPORT_RUN(function)                                               \
  static int opf_call_run(const TVMFFIAny* args, int32_t n, TVMFFIAny*) {      \
    return ::opfacade::guarded_run(function, args, n);                         \
  }                                                                            \
  OPF_EXPORT_RAW(run, opf_call_run)

}  // namespace opfacade
