// Launching the kernels of the cubin that is linked into this library (jit/build.py embeds it as opfacade_cubin).
//
//   struct ScaleParams { const float* x; float* y; int64_t n; float factor; };   // kernels/testing/scale_params.h
//
//   extern "C" __global__ void scale(const __grid_constant__ ScaleParams p) {...} // the .cu.jinja, in namespace opfacade
//
//   #include "csrc/common/launch.h"                                               // the .cc.jinja
//   #include "csrc/common/operands.h"
//   #include "kernels/testing/scale_params.h"
//   namespace opfacade {
//   OPF_KERNEL(scale_kernel, "scale");       // at namespace scope; loaded by the first launch or by prepare
//   void run(Operands& in) { ...; scale_kernel.launch(in.finish(), Launch(grid, block).shared(bytes), params); }
//   OPF_EXPORT_RUN(run);
//   OPF_EXPORT_PREPARE();                    // module.prepare(ordinal): load every kernel now, e.g. before graph capture
//   }
//
// A launch goes to tvm-ffi's current stream of the device, which is torch's. The host library calls `run` with a LaunchRecorder,
// which receives a copy of each launch. Code C022: a grid that no device accepts.
#pragma once
#include "csrc/common/driver.h"
#include "csrc/common/launch_recorder.h"

extern "C" __attribute__((visibility("hidden"))) const char opfacade_cubin[];

namespace opfacade {

struct Dim3 {
  Dim3(int64_t x, int64_t y = 1, int64_t z = 1) : x(x), y(y), z(z) {}  // NOLINT: implicit on purpose, Launch(blocks, 256)
  int64_t x, y, z;
};

// The shape of one launch. A grid with an axis of 0 launches nothing.
struct Launch {
  Launch(Dim3 grid, Dim3 block) : grid(grid), block(block) {}
  Launch& shared(int64_t bytes) { return shared_bytes = static_cast<unsigned>(bytes), *this; }
  // Programmatic dependent launch: the kernel may start before its predecessor ends, and must itself wait for its end.
  Launch& pdl(bool on = true) { return dependent = on, *this; }
  Launch& cluster(Dim3 size) { return clusters = size, *this; }

  Dim3 grid, block, clusters{1};
  unsigned shared_bytes = 0;
  bool dependent = false;
};

// The cubin of this library, loaded on first use. A failed load throws; the next call tries again.
inline CUlibrary library() {
  static const CUlibrary loaded = [] {
    CUlibrary made = nullptr;
    const Driver& driver = Driver::get();
    driver.check(driver.cuLibraryLoadData(&made, opfacade_cubin, nullptr, nullptr, 0, nullptr, nullptr, 0),
                 "loading a kernel for this device (cuLibraryLoadData)");
    return made;
  }();
  return loaded;
}

// One launch without its stream. The kernel's parameters follow it.
struct alignas(LaunchRecorder::kAlignment) LaunchRecord {
  static constexpr int kMaxAttributes = 2;
  CUlaunchConfig config;  // a replay sets attrs and hStream
  CUlaunchAttribute attributes[kMaxAttributes];
  CUfunction function;  // in the primary context of the device

  CUresult launch(CUstream stream) const {
    CUlaunchConfig now = config;
    now.attrs = const_cast<CUlaunchAttribute*>(attributes);
    now.hStream = stream;
    void* arguments[] = {const_cast<LaunchRecord*>(this + 1)};
    return Driver::get().cuLaunchKernelEx(&now, function, arguments, nullptr);
  }
};

// A ReplayFunction. The host library calls it without the GIL.
inline int replay(const void* const* records, int count, int device, void* stream) {
  try {
    const DeviceGuard guard(device);
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < count && result == CUDA_SUCCESS; ++i)
      result = static_cast<const LaunchRecord*>(records[i])->launch(static_cast<CUstream>(stream));
    return result;
  } catch (const FfiError&) {
    return CUDA_ERROR_UNKNOWN;
  }
}

// One kernel, identified by its symbol. Static storage only; several threads may call every member.
class Kernel {
 public:
  explicit Kernel(const char* symbol) : symbol_(symbol), next_(first()) { first() = this; }
  Kernel(const Kernel&) = delete;

  template <class Params>
  void launch(DLDevice device, const Launch& launch, const Params& params) {
    static_assert(__is_trivially_copyable(Params), "kernel parameters are passed by value");
    static_assert(sizeof(Params) <= 4096, "kernel parameters are at most 4096 bytes");
    launch_raw(device.device_id, launch, &params, sizeof(Params));
  }

  // How many CTAs of this shape one SM can hold.
  int blocks_per_sm(int device, int threads, int64_t shared_bytes) {
    DeviceGuard guard(device);
    const Driver& driver = Driver::get();
    int blocks = 0;
    allow_shared(device, static_cast<unsigned>(shared_bytes));
    driver.check(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reinterpret_cast<CUfunction>(handle()),
                                                                    threads, static_cast<size_t>(shared_bytes)),
                 "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    return blocks;
  }

  // How many clusters of this shape the device can hold, whatever the grid; at least 1. The driver is queried once per shape.
  int64_t clusters_at_once(int device, const Launch& launch) {
    const uint64_t shape = uint64_t{launch.shared_bytes} << 16 | static_cast<uint64_t>(launch.block.x << 5 | launch.clusters.x);
    DeviceGuard guard(device);
    const uint64_t known = atomic_load(at_once_[device]);
    if (known >> kCountBits == shape) return static_cast<int64_t>(known & kMostCount);
    allow_shared(device, launch.shared_bytes);
    CUlaunchAttribute attributes[LaunchRecord::kMaxAttributes];
    CUlaunchConfig config = shape_of(launch, attributes);
    config.gridDimX = static_cast<unsigned>(launch.clusters.x);
    int count = 0;
    const Driver& driver = Driver::get();
    driver.check(driver.cuOccupancyMaxActiveClusters(&count, reinterpret_cast<CUfunction>(handle()), &config), symbol_);
    count = count < 1 ? 1 : count > kMostCount ? kMostCount : count;
    atomic_store(at_once_[device], shape << kCountBits | static_cast<uint64_t>(count));
    return count;
  }

  // Loads every kernel of this library onto a device: afterwards a launch loads nothing, not even lazily.
  static void prepare(int64_t device) {
    DeviceGuard guard(static_cast<int>(device));
    const Driver& driver = Driver::get();
    for (Kernel* kernel = first(); kernel != nullptr; kernel = kernel->next_) {
      CUfunction ignored;
      driver.check(driver.cuKernelGetFunction(&ignored, kernel->handle()), kernel->symbol_);
    }
  }

 private:
  static constexpr unsigned kFreeShared = 48 * 1024;  // a launch with more shared memory needs an attribute
  static constexpr int64_t kPortableCluster = 8;
  static constexpr int kCountBits = 16, kMostCount = (1 << kCountBits) - 1;

  static Kernel*& first() {
    static Kernel* list = nullptr;
    return list;
  }

  CUkernel handle() {
    CUkernel kernel = atomic_load(kernel_);
    if (kernel == nullptr) {
      Driver::get().check(Driver::get().cuLibraryGetKernel(&kernel, library(), symbol_), symbol_);
      atomic_store(kernel_, kernel);
    }
    return kernel;
  }

  // The current context must be the device's.
  CUfunction function() {
    CUfunction function = nullptr;
    Driver::get().check(Driver::get().cuKernelGetFunction(&function, handle()), symbol_);
    return function;
  }

  // The attribute belongs to one kernel on one device; it is set to the largest size requested so far. DeviceGuard refuses a
  // `device` beyond kMaxDevices.
  void allow_shared(int device, unsigned bytes) {
    if (bytes <= kFreeShared || bytes <= atomic_load(allowed_[device])) return;
    const SpinLockGuard guard(locked_);
    if (bytes <= atomic_load(allowed_[device])) return;
    Driver::get().check(Driver::get().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                           static_cast<int>(bytes), handle(), device),
                        symbol_);
    atomic_store(allowed_[device], bytes);
  }

  // A cluster with more CTAs than every device of an architecture supports.
  void allow_cluster(int device, int64_t ctas) {
    if (ctas <= kPortableCluster || atomic_load(any_cluster_[device]) != 0) return;
    Driver::get().check(Driver::get().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, handle(), device),
                        symbol_);
    atomic_store(any_cluster_[device], 1u);
  }

  void launch_raw(int device, const Launch& launch, const void* params, size_t bytes) {
    if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0) return;
    check_grid(launch.grid);
    DeviceGuard guard(device);
    allow_shared(device, launch.shared_bytes);
    allow_cluster(device, launch.clusters.x);
    CUlaunchAttribute attributes[LaunchRecord::kMaxAttributes];
    CUlaunchConfig config = shape_of(launch, attributes);
    config.hStream = static_cast<CUstream>(TVMFFIEnvGetStream(kDLCUDA, device));
    void* arguments[] = {const_cast<void*>(params)};
    const Driver& driver = Driver::get();
    driver.check(driver.cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(handle()), arguments, nullptr), symbol_);
    if (void* recorder = CallContext::current()) record(static_cast<LaunchRecorder*>(recorder), config, params, bytes);
  }

  void record(LaunchRecorder* recorder, const CUlaunchConfig& config, const void* params, size_t bytes) {
    if (recorder->abi != LaunchRecorder::kAbi) return;
    auto* const record = static_cast<LaunchRecord*>(recorder->allocate(recorder, sizeof(LaunchRecord) + bytes, replay));
    if (record == nullptr) return;
    record->config = config, record->function = function();
    for (unsigned i = 0; i < config.numAttrs; ++i) record->attributes[i] = config.attrs[i];
    __builtin_memcpy(static_cast<void*>(record + 1), params, bytes);
  }

  static CUlaunchConfig shape_of(const Launch& launch, CUlaunchAttribute* attributes) {
    CUlaunchConfig config{};
    config.gridDimX = static_cast<unsigned>(launch.grid.x);
    config.gridDimY = static_cast<unsigned>(launch.grid.y);
    config.gridDimZ = static_cast<unsigned>(launch.grid.z);
    config.blockDimX = static_cast<unsigned>(launch.block.x);
    config.blockDimY = static_cast<unsigned>(launch.block.y);
    config.blockDimZ = static_cast<unsigned>(launch.block.z);
    config.sharedMemBytes = launch.shared_bytes;
    config.attrs = attributes;
    config.numAttrs = fill(attributes, launch);
    return config;
  }

  static unsigned fill(CUlaunchAttribute* attributes, const Launch& launch) {
    unsigned count = 0;
    if (launch.dependent) {
      attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      attributes[count++].value.programmaticStreamSerializationAllowed = 1;
    }
    if (launch.clusters.x * launch.clusters.y * launch.clusters.z > 1) {
      attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      attributes[count].value.clusterDim.x = static_cast<unsigned>(launch.clusters.x);
      attributes[count].value.clusterDim.y = static_cast<unsigned>(launch.clusters.y);
      attributes[count++].value.clusterDim.z = static_cast<unsigned>(launch.clusters.z);
    }
    return count;
  }

  // Sizes are computed in 64 bits and launched in 32: a truncated grid would skip work silently.
  void check_grid(const Dim3& grid) const {
    if (grid.x < 0 || grid.x > 0x7fffffff || grid.y < 0 || grid.y > 65535 || grid.z < 0 || grid.z > 65535) {
      throw FfiError("ValueError") << symbol_ << ": grid (" << grid.x << ", " << grid.y << ", " << grid.z
                                  << ") is beyond (2147483647, 65535, 65535). [OPF-C022]";
    }
  }

  const char* symbol_;
  Kernel* next_;
  CUkernel kernel_ = nullptr;
  unsigned allowed_[kMaxDevices] = {};
  unsigned any_cluster_[kMaxDevices] = {};
  uint64_t at_once_[kMaxDevices] = {};  // a shape, and the number of its clusters that fit
  bool locked_ = false;
};

#define OPF_KERNEL(variable, symbol) static ::opfacade::Kernel variable(symbol)
#define OPF_EXPORT_PREPARE() OPF_EXPORT(prepare, ::opfacade::Kernel::prepare)

}  // namespace opfacade
