// Small kernels that pass a number from thread to thread through shared memory. Some of them order the accesses and some do not
// (order.h); each is named after the operation that orders them.
#include <stdexcept>

#include "tests/emulator/simt.h"
#include "kernels/pipeline/ring.cuh"
#include "kernels/ptx/cluster_barrier.cuh"
#include "kernels/ptx/warpgroup.cuh"

using namespace opfacade;

struct Params {
  int* out;
};
struct Shared {
  uint64_t full[1], empty[1];
  alignas(16) int data[64];
  int counter;
};

static Shared& begun(int fills, int reads) {
  Shared& smem = *reinterpret_cast<Shared*>(dynamic_shared());
  if (threadIdx.x == 0) mbarrier_init(smem_address(&smem.full[0]), fills), mbarrier_init(smem_address(&smem.empty[0]), reads);
  __syncthreads();
  return smem;
}

// The first warp writes, and the second warp reads what the next lane has written, three times.
template <class Filled, class Read>
static void hand_over(const void* params, int fills, int reads, const Filled& filled, const Read& read) {
  Shared& smem = begun(fills, reads);
  const int lane = threadIdx.x % 32;
  Ring<1> ring;
  for (int step = 0; step < 3; ++step, ring.advance()) {
    if (threadIdx.x < 32) {
      ring.wait_empty(smem.empty);
      smem.data[lane] = step + lane;
      filled(smem);
    } else {
      ring.wait_full(smem.full);
      static_cast<const Params*>(params)->out[lane] = smem.data[lane ^ 1];
      read(smem);
    }
  }
}
static void each_arrives(uint64_t& barrier) { mbarrier_arrive(smem_address(&barrier)); }
static void one_arrives(uint64_t& barrier) { mbarrier_arrive_if(threadIdx.x % 32 == 0, smem_address(&barrier)); }
static void after_a_vote(uint64_t& barrier) { __any_sync(~0u, true), one_arrives(barrier); }

static void arrivals_of_each_lane(const void* params) {
  hand_over(params, 32, 32, [](Shared& smem) { each_arrives(smem.full[0]); }, [](Shared& smem) { each_arrives(smem.empty[0]); });
}
static void arrivals_of_warps(const void* params) {
  hand_over(params, 1, 1, [](Shared& smem) { warp_arrive(smem.full[0]); },
            [](Shared& smem) { warp_arrive_at(smem_address(&smem.empty[0])); });
}
static void not_a_lane_that_wrote(const void* params) {
  hand_over(params, 1, 32, [](Shared& smem) { one_arrives(smem.full[0]); }, [](Shared& smem) { each_arrives(smem.empty[0]); });
}
static void not_a_lane_that_read(const void* params) {
  hand_over(params, 32, 1, [](Shared& smem) { each_arrives(smem.full[0]); }, [](Shared& smem) { one_arrives(smem.empty[0]); });
}
static void not_a_vote(const void* params) {
  hand_over(params, 32, 1, [](Shared& smem) { each_arrives(smem.full[0]); }, [](Shared& smem) { after_a_vote(smem.empty[0]); });
}

// The first warp writes a number for the second; `between` runs between the write and the read.
template <class Between>
static void once(const void* params, const Between& between) {
  Shared& smem = begun(1, 1);
  if (threadIdx.x < 32) smem.data[threadIdx.x] = threadIdx.x;
  between(smem);
  if (threadIdx.x >= 32) static_cast<const Params*>(params)->out[threadIdx.x % 32] = smem.data[threadIdx.x % 32];
}
static void threads_of_a_block(const void* params) {
  once(params, [](Shared&) { __syncthreads(); });
}
static void a_named_barrier(const void* params) {
  once(params, [](Shared&) { if (threadIdx.x < 32) named_arrive(1, 64); else named_sync(1, 64); });
}
static void blocks_of_a_cluster(const void* params) {
  once(params, [](Shared&) { cluster_sync(); });
}
static void not_a_relaxed_cluster_barrier(const void* params) {
  once(params, [](Shared&) { cluster_arrive(), cluster_wait(); });
}
static void not_an_atomic(const void* params) {
  once(params, [](Shared& smem) {
    if (threadIdx.x < 32) atomicAdd(reinterpret_cast<uint32_t*>(&smem.counter), 1u);
    __syncwarp();
  });
}
// A copy may write at any time until a thread waits for it.
static void not_a_copy_without_a_wait(const void* params) {
  static int numbers alignas(16)[4] = {1, 2, 3, 4};
  Shared& smem = begun(1, 1);
  if (threadIdx.x == 0) cp_async_16(smem_address(smem.data), numbers, true), cp_async_commit();
  __syncthreads();
  if (threadIdx.x == 0) cp_async_wait<0>();
  if (threadIdx.x == 32) static_cast<const Params*>(params)->out[0] = smem.data[0];
}
// A copy by TMA (tma.cuh); the second warp reads the data after it has waited for `which`.
static void copied_once(const void* params, uint64_t (Shared::*which)[1]) {
  Shared& smem = begun(1, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(smem_address(&smem.full[0]), 16);
    simt::order::begin_copy();
    smem.data[0] = 7;
    mbarrier_bytes_came(smem_address(&smem.full[0]), 16);
    mbarrier_arrive(smem_address(&smem.empty[0]));
  }
  if (threadIdx.x < 32) return;
  mbarrier_wait(smem_address(&(smem.*which)[0]), 0);
  static_cast<const Params*>(params)->out[threadIdx.x % 32] = smem.data[0];
}
static void the_barrier_of_a_copy(const void* params) { copied_once(params, &Shared::full); }
static void not_an_arrival_after_a_copy(const void* params) { copied_once(params, &Shared::empty); }
// A thread sees its own accesses in order, and threads may read at the same time.
static void nothing_is_needed(const void* params) {
  Shared& smem = begun(1, 1);
  if (threadIdx.x < 32) smem.data[threadIdx.x] = 1, smem.data[threadIdx.x] += smem.data[threadIdx.x];
  __syncthreads();
  static_cast<const Params*>(params)->out[threadIdx.x % 32] = smem.data[0] + smem.data[1];
}

#define RUN(name)                                                                                        \
  extern "C" bool run_##name(int* out) {                                                                 \
    const Params params{out};                                                                            \
    try {                                                                                                \
      return simt::launch({1, 1, 1}, 64, sizeof(Shared), 1, static_cast<void (*)(const void*)>(name), &params); \
    } catch (const std::exception&) {                                                                    \
      return false;                                                                                      \
    }                                                                                                    \
  }
RUN(arrivals_of_each_lane) RUN(arrivals_of_warps) RUN(threads_of_a_block) RUN(a_named_barrier) RUN(blocks_of_a_cluster)
RUN(nothing_is_needed) RUN(not_a_lane_that_wrote) RUN(not_a_lane_that_read) RUN(not_a_vote) RUN(not_a_relaxed_cluster_barrier)
RUN(not_an_atomic) RUN(not_a_copy_without_a_wait) RUN(the_barrier_of_a_copy) RUN(not_an_arrival_after_a_copy)
