// Latent decode for sm_90a: one query row a request, up to 128 heads that all attend to the same rows, which are key and
// value at once. A block takes 64 heads and goes over tiles of 32 tokens, which are loaded once for all uses. o of 64 heads is
// 64 x 512 f32 numbers, half of all registers of an SM: two warpgroups hold 256 columns of it each and do nothing else. A third
// keeps the queries, which are a quarter of the registers, and makes scores and weights for both:
//
//   weights   scores 1 | softmax 1 | scores 2 | softmax 2 | scores 3 ...
//   values             | values 0  |          | values 1  |          ...
//
// So the tensor cores have something to do during a softmax, and scores, for which the others wait, have them alone. Head blocks of one
// request run at the same time, so that blocks that read the same tokens share them in the L2.
#pragma once
#include "kernels/attention/decode/schedule/join.cuh"
#include "kernels/mla/add.cuh"
#include "kernels/mla/gather.cuh"
#include "kernels/mla/weigh.cuh"

namespace opfacade {

// Registers of a thread: together with those of two groups that add, all that an SM has.
constexpr int kMlaLoaderRegisters = 48, kMlaWeigherRegisters = 144, kMlaAdderRegisters = 160;

template <class C>
__device__ __forceinline__ void mla_decode(const MlaParams& p) {
  MlaShared& smem = *reinterpret_cast<MlaShared*>(dynamic_shared());
  if (threadIdx.x == 0) init_barriers(smem, p.mapped);
  prefetch_lengths<C>(p.base);
  begin(p.base);
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);
  // Orders, not equalities: of those the compiler makes a jump through a table, where no check of the code can follow.
  if (group < 1) {
    give_registers<kMlaLoaderRegisters>();
    produce<C>(p, smem);
  } else if (group < 2) {
    take_registers<kMlaWeigherRegisters>();
    MlaWeigher<C>(p, smem).run();
  } else {
    take_registers<kMlaAdderRegisters>();
    MlaAdder<C>{p.base, smem, group - 2, arrives_at_stages(p.mapped)}.run();
  }
}

}  // namespace opfacade
