// The interface between the host library (csrc/host) and a kernel library: how the host library learns what a call launched, and
// launches it again later. Kernel parameters are a function of the tensors and of the plan, never of the stream.
//
// The host library passes a LaunchRecorder as the context of a call (CallContext, ffi.h); Kernel::launch (launch.h) writes a record
// of each launch into its memory. Only the kernel library knows what a record is.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace opfacade {

// Launches records on a stream of a device; returns 0 or the CUresult. It is in the kernel library, which has loaded the
// driver.
using ReplayFunction = int (*)(const void* const* records, int count, int device, void* stream);

struct LaunchRecorder {
  // Increment this version if this file changes: one process may load libraries built from both versions.
  static constexpr uint64_t kAbi = 1;
  static constexpr size_t kAlignment = 64;
  uint64_t abi;
  // Memory for one more record, which `replay` will read; null if no more fits.
  void* (*allocate)(LaunchRecorder* self, size_t bytes, ReplayFunction replay);
};

}  // namespace opfacade
