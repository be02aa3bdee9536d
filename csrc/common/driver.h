// The CUDA driver, opened at the first launch: a binding loads on a machine without a GPU and needs no CUDA runtime.
// Handles below are context-independent, so one serves every device.
//
// Codes: C020 a driver call failed, C021 no usable driver.
#pragma once
#include <cuda.h>
#include <dlfcn.h>

#include "csrc/common/ffi.h"
#include "csrc/common/shared.h"

#ifndef OPF_DRIVER  // tests define a stub
#define OPF_DRIVER "libcuda.so.1"
#endif

namespace opfacade {

#define OPF_DRIVER_FUNCTIONS(apply)                                                                             \
  apply(cuInit) apply(cuGetErrorName) apply(cuDeviceGetAttribute) apply(cuDevicePrimaryCtxRetain)               \
  apply(cuCtxGetCurrent) apply(cuCtxPushCurrent) apply(cuCtxPopCurrent) apply(cuLibraryLoadData)                \
  apply(cuLibraryGetKernel) apply(cuKernelSetAttribute) apply(cuKernelGetFunction) apply(cuLaunchKernelEx)      \
  apply(cuOccupancyMaxActiveBlocksPerMultiprocessor) apply(cuOccupancyMaxActiveClusters)

// cuda.h renames some functions by macro (cuCtxPushCurrent is cuCtxPushCurrent_v2); the exported name is the renamed one.
#define OPF_TEXT_(x) #x
#define OPF_TEXT(x) OPF_TEXT_(x)

class Driver {
 public:
#define OPF_MEMBER(function) decltype(&::function) function;
  OPF_DRIVER_FUNCTIONS(OPF_MEMBER)
#undef OPF_MEMBER

  // A failed look-up throws; the next call tries again.
  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

  void check(CUresult result, const char* what) const {
    if (__builtin_expect(result != CUDA_SUCCESS, 0)) fail(result, what);
  }

  [[noreturn, gnu::cold, gnu::noinline]] void fail(CUresult result, const char* what) const {
    const char* name = nullptr;
    if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown CUDA error";
    throw FfiError("RuntimeError") << what << " failed: " << name << " (" << static_cast<int>(result) << "). [OPF-C020]";
  }

 private:
  Driver() {
    void* library = dlopen(OPF_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw FfiError("RuntimeError") << "no CUDA driver: " << dlerror() << ". [OPF-C021]";
#define OPF_LOOKUP(function) \
  function = reinterpret_cast<decltype(function)>(lookup(library, OPF_TEXT(function)));
    OPF_DRIVER_FUNCTIONS(OPF_LOOKUP)
#undef OPF_LOOKUP
    check(cuInit(0), "cuInit");
  }

  static void* lookup(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (found == nullptr) {
      throw FfiError("RuntimeError") << "the CUDA driver has no " << name << "; 12.0 or later is needed. [OPF-C021]";
    }
    return found;
  }
};

constexpr int kMaxDevices = 64;

// The primary context of a device, retained for the life of the process. torch uses the same context.
inline CUcontext primary_context(int device) {
  static CUcontext contexts[kMaxDevices];
  if (device < 0 || device >= kMaxDevices) throw FfiError("ValueError") << "no device cuda:" << device << ". [OPF-C021]";
  CUcontext context = atomic_load(contexts[device]);
  if (context == nullptr) {
    // Two threads may both retain it; it is never released, so an extra reference is harmless.
    Driver::get().check(Driver::get().cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    atomic_store(contexts[device], context);
  }
  return context;
}

// Makes a device's primary context current in a C++ scope; does nothing if it is current already.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : driver_(Driver::get()) {
    const CUcontext wanted = primary_context(device);
    CUcontext current = nullptr;
    driver_.check(driver_.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
    if (current == wanted) return;
    driver_.check(driver_.cuCtxPushCurrent(wanted), "cuCtxPushCurrent");
    pushed_ = true;
  }
  ~DeviceGuard() {
    CUcontext ignored;
    if (pushed_) driver_.cuCtxPopCurrent(&ignored);
  }
  DeviceGuard(const DeviceGuard&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

inline int device_attribute(int device, CUdevice_attribute attribute) {
  int value = 0;
  Driver::get().check(Driver::get().cuDeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute");
  return value;
}

inline int sm_count(int device) { return device_attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT); }

}  // namespace opfacade
