// Small kernels that use the classes of kernels/pipeline. Each takes its parameters and writes what its threads have read to
// `out`.
#include "tests/emulator/simt.h"
#include "kernels/pipeline/work_queue.cuh"

using namespace opfacade;

struct Params {
  int* out;
  int steps;
};

constexpr int kStages = 3, kConsumers = 2;  // kConsumers is the number of warps that read

struct Shared {
  uint64_t full[kStages], empty[kStages];
  int data[kStages][32];
};

// One warp fills a ring and two warps read it: out[(reader * steps + step) * 32 + lane] is the value that a lane reads from its
// neighbour.
static void ring(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  Shared& smem = *reinterpret_cast<Shared*>(dynamic_shared());
  if (threadIdx.x == 0)
    for (int i = 0; i < kStages; ++i) mbarrier_init(smem_address(&smem.full[i]), 32), mbarrier_init(smem_address(&smem.empty[i]), kConsumers);
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Ring<kStages> ring;
  for (int step = 0; step < p.steps; ++step, ring.advance()) {
    if (warp == 0) {
      ring.wait_empty_together(smem.empty);
      smem.data[ring.stage][lane] = 100 * step + lane;
      publish_writes(ring.at(smem.full));
    } else {
      ring.wait_full(smem.full);
      p.out[((warp - 1) * p.steps + step) * 32 + lane] = smem.data[ring.stage][lane ^ 1];
      if (warp == 1) warp_arrive(smem.empty[ring.stage]); else warp_arrive_at(ring.at(smem.empty));
    }
  }
}

// The answers of a ring about a barrier without arrivals and after one arrival: four bits in out[0].
static void tests(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  Shared& smem = *reinterpret_cast<Shared*>(dynamic_shared());
  mbarrier_init(smem_address(&smem.full[0]), 1);
  Ring<kStages> ring;
  int found = ring.is_full(smem.full) | ring.is_empty(smem.full) << 1;
  mbarrier_arrive(ring.at(smem.full));
  found |= ring.is_full(smem.full) << 2 | ring.is_empty(smem.full) << 3;
  p.out[0] = found;
}

// The stage and the parity of a ring at each step, then the number of fences that an arrival after ordinary writes issues.
static void positions(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  if (threadIdx.x != 0) return;
  Ring<kStages> ring;
  for (int step = 0; step < p.steps; ++step, ring.advance()) p.out[2 * step] = ring.stage, p.out[2 * step + 1] = ring.parity;
  Shared& smem = *reinterpret_cast<Shared*>(dynamic_shared());
  mbarrier_init(smem_address(&smem.full[0]), 1);
  const int before = async_fences;
  publish_writes(smem_address(&smem.full[0]));
  p.out[2 * p.steps] = async_fences - before;
}

struct Item {
  int value;
};
struct QueueShared {
  uint64_t work_full[kQueue], work_empty[kQueue];
  Item work[kQueue];
};

// One warp publishes `steps` items and an end, and two warps read them.
static void queue(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  QueueShared& smem = *reinterpret_cast<QueueShared*>(dynamic_shared());
  if (threadIdx.x == 0)
    for (int i = 0; i < kQueue; ++i) mbarrier_init(smem_address(&smem.work_full[i]), 1), mbarrier_init(smem_address(&smem.work_empty[i]), kConsumers * 32);
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  WorkQueueIn<QueueShared, Item> queue(smem);
  for (int step = 0; step <= p.steps; ++step) {
    if (warp == 0) {
      queue.publish({step == p.steps ? -1 : 7 * step});
      queue.advance();
    } else {
      const Item& item = queue.peek();
      if (item.value < 0) break;
      p.out[((warp - 1) * p.steps + step) * 32 + lane] = item.value;
      queue.release();
    }
  }
}

static bool run(void (*kernel)(const void*), int* out, int steps) {
  const Params params{out, steps};
  return simt::launch({1, 1, 1}, 32 * (1 + kConsumers), 4096, 1, kernel, &params);
}
extern "C" bool run_ring(int* out, int steps) { return run(ring, out, steps); }
extern "C" bool run_tests(int* out, int steps) { return run(tests, out, steps); }
extern "C" bool run_positions(int* out, int steps) { return run(positions, out, steps); }
extern "C" bool run_queue(int* out, int steps) { return run(queue, out, steps); }
