#pragma once
#include <stdint.h>

namespace opfacade {

struct QuickParams {
  uint64_t digest;  // digest of all arguments of the run
  uint64_t call;    // number of the run that wrote these parameters
  uint64_t launch;  // index of the launch in its run
  uint64_t rest;

  void mix(uint64_t value) { digest = (digest ^ value) * 1099511628211u; }
};

}  // namespace opfacade
