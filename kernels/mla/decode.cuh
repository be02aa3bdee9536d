// Latent decode for sm_90a: one or several query rows a request, up to 128 heads that all attend to the same rows, which are both
// key and value. A CTA takes 64 heads and tiles of 32 tokens, each loaded once for all uses. o of 64 heads is 64 x 512 f32, half
// the registers of an SM: two value warpgroups hold 256 columns each. The score warpgroup keeps the queries in registers and
// computes scores and weights for both, so the tensor cores are busy during a softmax:
//
//   score group   scores 1 | softmax 1 | scores 2 | softmax 2 | scores 3 ...
//   value groups           | values 0  |          | values 1  |          ...
//
// The head blocks of a request run concurrently, so that CTAs that read the same tokens share them in L2. Several query rows
// are more heads to all of this, and the rows of a head block differ in the keys that they see: only the tiles at the ends of
// their windows are masked row by row.
#pragma once
#include "kernels/attention/decode/schedule/join.cuh"
#include "kernels/common/registers.h"
#include "kernels/mla/add.cuh"
#include "kernels/mla/gather.cuh"
#include "kernels/mla/weigh.cuh"

namespace opfacade {

// Registers a thread: producer + score group + two value groups use all 64 K registers of an SM.
constexpr int kMlaProducerRegisters = 48, kMlaScoreRegisters = 144, kMlaValueRegisters = 160;
static_assert(fit_registers(kMlaProducerRegisters + kMlaScoreRegisters + 2 * kMlaValueRegisters, 4), "more registers than a CTA has");

template <class C>
__device__ __forceinline__ void mla_decode(const MlaParams& p) {
  MlaShared& smem = *reinterpret_cast<MlaShared*>(dynamic_shared());
  if (threadIdx.x == 0) init_barriers(smem, p.mapped);
  prefetch_lengths<C>(p.base);
  kernel_prologue(p.base);
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);
  // Comparisons with <, because equality tests compile to a jump table, which the SASS hazard check cannot follow.
  if (group < 1) {
    release_registers<kMlaProducerRegisters>();
    produce<C>(p, smem);
  } else if (group < 2) {
    acquire_registers<kMlaScoreRegisters>();
    MlaScoreGroup<C>(p, smem).run();
  } else {
    acquire_registers<kMlaValueRegisters>();
    MlaValueGroup<C>{p.base, smem, group - 2, arrives_at_stages(p.mapped)}.run();
  }
}

}  // namespace opfacade
