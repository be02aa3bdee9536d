// What racecheck does not follow: a warp writes shared memory, meets (__syncwarp), and one lane arrives at an mbarrier for all of
// it. That orders the writes of every lane before the reads of whoever waits, and racecheck reports a race all the same. Our
// kernels arrive with every thread where threads write for threads, and once a warp for TMA and the tensor cores. The factors of
// fp8 blocks are released once a warp (kernels/matmul/stage_reader.cuh): racecheck reports them if k has more steps than stages,
// and tests/emulator/test_order.py checks them instead. Not built by the tests:
//   nvcc -arch=sm_90a -o probe tests/racecheck_probe.cu && compute-sanitizer --tool racecheck ./probe
#include <cstdint>
#include <cstdio>

__device__ uint32_t address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ void arrive(uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
__device__ void await(uint64_t* barrier, int parity) {
  for (uint32_t done = 0; !done;)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(address(barrier)), "r"(parity) : "memory");
}

__global__ void hand_over(float* out) {
  __shared__ float shown[128];
  __shared__ alignas(8) uint64_t full, empty;
  if (threadIdx.x == 0)
    for (uint64_t* barrier : {&full, &empty}) asm volatile("mbarrier.init.shared::cta.b64 [%0], 4;" ::"r"(address(barrier)) : "memory");
  __syncthreads();
  const int thread = threadIdx.x % 128;
  float sum = 0;
  for (int round = 0; round < 4; ++round) {
    if (threadIdx.x < 128) {
      if (round > 0) await(&empty, (round - 1) & 1);
      shown[thread] = thread + round;
      arrive(&full);
    } else {
      await(&full, round & 1);
      sum += shown[thread];
      arrive(&empty);
    }
  }
  if (threadIdx.x >= 128) out[thread] = sum;
}

int main() {
  float* out;
  cudaMalloc(&out, 512);
  hand_over<<<1, 256>>>(out);
  std::printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
