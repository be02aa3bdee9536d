// Small kernels that use the parts of kernels/tile. Each takes its parameters and writes what its threads have or compute to
// `out`.
#include "tests/emulator/simt.h"
#include "kernels/tile/column.cuh"
#include "kernels/tile/fragment.cuh"
#include "kernels/tile/quad.cuh"
#include "kernels/tile/transpose_bytes.cuh"

using namespace opfacade;

struct Params {
  float* out;
  const float *a, *b;
};
constexpr int kA = 0, kB = 1 << 15;  // shared addresses of the two operands

// Stores a row-major matrix as bf16; place(row, chunk) is the address of a chunk.
template <class Place>
static void stage(uint32_t to, const float* from, int rows, int columns, Place place) {
  for (int i = threadIdx.x; i < rows * columns; i += blockDim.x) {
    const int row = i / columns, column = i % columns;
    const uint16_t bits = static_cast<uint16_t>(BF16::pack(from[i], 0.f));
    memcpy(simt::at(to + place(row, column / 8) + column % 8 * 2), &bits, 2);
  }
}
template <int kColumns>
static void unload(float* out, const float (&d)[kColumns / 2]) {
  for (int i = 0; i < kColumns / 2; ++i)
    out[(warpgroup_row() + 8 * fragment_half(i)) * kColumns + lane_column() + fragment_column(i)] = d[i];
}

// a [64, 128], b [64, 128]: a * b^T, from panels.
static void rows(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  const auto place = [](int row, int chunk) { return panels_address(row, chunk, 64 * 128, kPanelGroup); };
  stage(kA, p.a, 64, 128, place), stage(kB, p.b, 64, 128, place);
  __syncthreads();
  float d[32];
  for (int panel = 0; panel < 2; ++panel)
    Wgmma<BF16, 64>::ss(d, row_steps(kA + panel * 64 * 128), row_steps(kB + panel * 64 * 128), panel > 0);
  wgmma_commit();
  wgmma_wait<0>();
  unload<64>(p.out, d);
}

// a [64, 64], b [64, 128]: a * b. Groups of eight rows of b have both panels.
static void groups(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  stage(kA, p.a, 64, 64, [](int row, int chunk) { return panel_address(row, chunk); });
  stage(kB, p.b, 64, 128, [](int row, int chunk) { return panels_address(row, chunk, kPanelGroup, 2 * kPanelGroup); });
  __syncthreads();
  float d[64] = {};
  Wgmma<BF16, 128>::st(d, row_steps(kA), group_steps(kB, 2 * kPanelGroup, kPanelGroup));
  wgmma_commit();
  wgmma_wait<0>();
  unload<128>(p.out, d);
}

// One warp, rows of kChunks chunks. a [16, 8 * kChunks], b the same: a * b^T; then [16, 8 * kChunks]: the 16 x 16 result * b.
template <int kChunks>
static void matrices(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  constexpr int kColumns = 8 * kChunks;
  const auto place = [](int row, int chunk) { return swizzled<kChunks>(row, chunk); };
  stage(kA, p.a, 16, kColumns, place), stage(kB, p.b, 16, kColumns, place);
  __syncwarp();
  const uint32_t at_a = kA + swizzled<kChunks>(down_first()), at_b = kB + swizzled<kChunks>(across_first());
  float s[2][4] = {};
  for (int step = 0; step < kChunks / 2; ++step) {
    uint32_t a[4], b[4];
    ldmatrix_x4(a, chunks_on(at_a, 2 * step)), ldmatrix_x4(b, chunks_on(at_b, 2 * step));
    for (int block = 0; block < 2; ++block) mma_16x8x16<BF16>(s[block], a, b[2 * block], b[2 * block + 1]);
  }
  float both[8];
  memcpy(both, s, sizeof(both));
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 4; ++i)
      p.out[(lane_row() + 8 * half) * 16 + lane_column() + row_column(i)] = both[row_index(half, i)];
  uint32_t a[4];
  for (int i = 0; i < 4; ++i) a[i] = BF16::pack(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
  const uint32_t values = kB + swizzled<kChunks>(down_first());
  for (int pair = 0; pair < kChunks / 2; ++pair) {
    uint32_t b[4];
    float o[2][4] = {}, all[8];
    ldmatrix_x4_trans(b, chunks_on(values, 2 * pair));
    for (int block = 0; block < 2; ++block) mma_16x8x16<BF16>(o[block], a, b[2 * block], b[2 * block + 1]);
    memcpy(all, o, sizeof(all));
    for (int i = 0; i < 8; ++i)
      p.out[256 + (lane_row() + 8 * fragment_half(i)) * kColumns + 16 * pair + lane_column() + fragment_column(i)] = all[i];
  }
}

// For 64 rows and 8 chunks: the addresses in rows of 4, 8 and 16 chunks, and in a panel.
static void addresses(const void* params) {
  float* out = static_cast<const Params*>(params)->out;
  for (int i = threadIdx.x; i < 512; i += blockDim.x) {
    const int row = i / 8, chunk = i % 8;
    out[i] = swizzled<4>(row, chunk % 4), out[512 + i] = swizzled<8>(row, chunk), out[1024 + i] = swizzled<16>(row, chunk);
    out[1536 + i] = panel_address(row, chunk);
  }
}

// The thread and the element of each of 64 columns, then whether each thread is the first of its row.
static void holders(const void* params) {
  float* out = static_cast<const Params*>(params)->out;
  for (int column = threadIdx.x; column < 64; column += blockDim.x)
    out[2 * column] = column_thread(column), out[2 * column + 1] = column_element(column);
  if (threadIdx.x < 32) out[128 + threadIdx.x] = leads_row(threadIdx.x);
}

// Of a row of 16 columns: its four words by thread after exchange_columns, and the first of the columns that they should be. Then
// 16 words of a quad, transposed.
static void exchanges(const void* params) {
  float* out = static_cast<const Params*>(params)->out;
  if (threadIdx.x >= 32) return;
  const uint32_t column = static_cast<uint32_t>(lane_column()), t = threadIdx.x % 4;
  uint32_t four[4];
  exchange_columns<2>({column, column + 1}, {8 + column, 9 + column}, four);
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 5 + i] = four[i];
  out[threadIdx.x * 5 + 4] = exchanged_column();
  uint32_t word[4] = {4 * t, 4 * t + 1, 4 * t + 2, 4 * t + 3};
  transpose_quad(word);
  for (int i = 0; i < 4; ++i) out[160 + threadIdx.x * 4 + i] = word[i];
}

// The sums and maxima over the lanes that have the same columns.
static void columns(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  if (threadIdx.x >= 32) return;
  p.out[threadIdx.x] = column_sum(p.a[threadIdx.x]), p.out[32 + threadIdx.x] = column_max(p.a[threadIdx.x]);
}

// A [128, 128] byte matrix, transposed by four warps; out contains the rows as they are in shared memory, without the swizzle.
static void bytes(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  for (int i = threadIdx.x; i < 128 * 128; i += blockDim.x)
    *simt::at(kA + panel_address(i / 128, i % 128 / 16) + i % 16) = static_cast<unsigned char>(p.a[i]);
  __syncthreads();
  for (int column = 0; column < 128; column += 16) {
    uint32_t w[4];
    load_transposed(w, read_place(kA), threadIdx.x / 32 * 32, column);
    store_transposed(w, write_place(kB), threadIdx.x / 32 * 32, column);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 128 * 128; i += blockDim.x) p.out[i] = *simt::at(kB + panel_address(i / 128, i % 128 / 16) + i % 16);
}

static bool run(void (*kernel)(const void*), int threads, float* out, const float* a, const float* b) {
  const Params params{out, a, b};
  return simt::launch({1, 1, 1}, threads, 1 << 16, 1, kernel, &params);
}
#define OPF_RUN(NAME, KERNEL, THREADS) \
  extern "C" bool run_##NAME(float* out, const float* a, const float* b) { return run(KERNEL, THREADS, out, a, b); }
OPF_RUN(rows, rows, 128)
OPF_RUN(groups, groups, 128)
OPF_RUN(matrices_4, matrices<4>, 32)
OPF_RUN(matrices_8, matrices<8>, 32)
OPF_RUN(matrices_16, matrices<16>, 32)
OPF_RUN(addresses, addresses, 128)
OPF_RUN(holders, holders, 128)
OPF_RUN(exchanges, exchanges, 32)
OPF_RUN(columns, columns, 32)
OPF_RUN(bytes, bytes, 128)
