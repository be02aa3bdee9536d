#pragma once
#include <stdint.h>

namespace opfacade {

struct QuickParams {
  uint64_t digest;  // of all that a run was given
  uint64_t call;    // which run filled this in
  uint64_t launch;  // which of its launches
  uint64_t rest;

  void mix(uint64_t value) { digest = (digest ^ value) * 1099511628211u; }
};

}  // namespace opfacade
