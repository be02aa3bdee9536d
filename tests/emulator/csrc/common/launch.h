// Shadows csrc/common/launch.h: a launch runs the kernel of the same symbol on the host.
#pragma once
#include <dlfcn.h>

#include "csrc/common/ffi.h"
#include "tests/emulator/simt.h"

namespace opfacade {

struct Dim3 {
  Dim3(int64_t x, int64_t y = 1, int64_t z = 1) : x(x), y(y), z(z) {}
  int64_t x, y, z;
};

struct Launch {
  Launch(Dim3 grid, Dim3 block) : grid(grid), block(block) {}
  Launch& shared(int64_t bytes) { return shared_bytes = bytes, *this; }
  Launch& pdl(bool = true) { return *this; }
  Launch& cluster(Dim3 size) { return clusters = size, *this; }
  Dim3 grid, block, clusters{1};
  int64_t shared_bytes = 0;
};

inline int sm_count(int) { return 3; }  // only a few SMs, so that a CTA takes more than one work item

// Compiles a kernel that this library does not have, or returns the reason why it cannot; the owner of the library sets the
// function (lazy.py).
struct Found {
  void* kernel;
  void* launch;
  char refused[960];
};
extern "C" __attribute__((weak)) void (*emulated_find)(const char* name, Found* found) = nullptr;

inline Found found(const char* name) {
  Found out{};
  if (emulated_find != nullptr) {
    emulated_find(name, &out);
  } else {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&found), &info);
    void* const own = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    out.kernel = dlsym(own, name), out.launch = dlsym(own, "simt_launch");
  }
  if (out.refused[0] != 0) throw FfiError("EmulatorRefused") << out.refused;
  if (out.kernel == nullptr) throw FfiError("RuntimeError") << "no kernel " << name;
  return out;
}

class Kernel {
 public:
  explicit Kernel(const char* name) : name_(name) {}

  // only a few clusters, so that rows take more than one round
  static int64_t clusters_at_once(int, const Launch&) { return 2; }

  template <class Params>
  void launch(DLDevice, const Launch& launch, const Params& params) {
    const Found own = found(name_);
    auto* kernel = reinterpret_cast<void (*)(Params)>(own.kernel);
    auto* run = reinterpret_cast<bool (*)(Index, int, size_t, int, void (*)(const void*), const void*)>(own.launch);
    const Index grid{static_cast<unsigned>(launch.grid.x), static_cast<unsigned>(launch.grid.y), static_cast<unsigned>(launch.grid.z)};
    const int threads = static_cast<int>(launch.block.x);
    const auto body = [&] { kernel(params); };
    const auto call = [](const void* made) { (*static_cast<decltype(&body)>(made))(); };
    if (!run(grid, threads, launch.shared_bytes, static_cast<int>(launch.clusters.x), call, &body))
      throw FfiError("RuntimeError") << name_ << ": threads wait for each other forever";
  }

 private:
  const char* name_;
};

#define OPF_KERNEL(variable, name) static ::opfacade::Kernel variable(name)
#define OPF_EXPORT_PREPARE() static_assert(true, "nothing to prepare")

}  // namespace opfacade
