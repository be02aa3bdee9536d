// The tile path of a map: tiles of kTile positions of the last axis by kTile of the second-to-last. Inputs that are contiguous
// along the second-to-last axis are copied to shared memory column by column and read back along rows, in which results are
// computed and stored; every access has 16 bytes. Each column permutes its 16-byte chunks, so that neither side has bank
// conflicts.
#pragma once
#include "kernels/elementwise/map.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

// The tile of one input in shared memory. kVec: elements of a row that a thread reads; kUnroll: copies whose code is unrolled.
template <class Bits, uint32_t kTile, uint32_t kVec, int kUnroll>
struct TransposedTile {
  static constexpr uint32_t kPerChunk = 16 / sizeof(Bits), kChunks = kTile / kPerChunk, kAll = kTile * kChunks;

  __device__ __forceinline__ static uint32_t place(uint32_t row, uint32_t column) {
    const uint32_t chunk = (row / kPerChunk) ^ (column / kVec % kChunks);
    return (column * kChunks + chunk) * 16 + row % kPerChunk * static_cast<uint32_t>(sizeof(Bits));
  }
  // step: the distance between columns. wide: the chunks are aligned. rows, columns: the size of the valid part of the tile.
  __device__ __forceinline__ static void fetch(unsigned char* shared, const void* input, int64_t at, int64_t step, bool wide, uint32_t rows, uint32_t columns) {
    const uint32_t row = threadIdx.x % kChunks * kPerChunk;
    if (row >= rows) return;
    const Bits* const from = static_cast<const Bits*>(input) + at + row;
    if (wide && row + kPerChunk <= rows) {
#pragma unroll kUnroll
      for (uint32_t item = 0; item < kAll; item += kTileThreads) {
        const uint32_t column = threadIdx.x / kChunks + item / kChunks;
        if (column < columns) cp_async_16(smem_address(shared + place(row, column)), from + column * step, true);
      }
    } else {
#pragma unroll 1
      for (uint32_t column = threadIdx.x / kChunks; column < columns; column += kTileThreads / kChunks)
        copy_some(reinterpret_cast<Bits*>(shared + place(row, column)), from + column * step, rows - row);
    }
  }
  template <class P>
  __device__ __forceinline__ static void take(P& pack, const unsigned char* shared, uint32_t row, uint32_t column) {
    const unsigned char* const from = shared + place(row, column);
#pragma unroll
    for (uint32_t i = 0; i < kVec; ++i) pack.set_bits(i, *reinterpret_cast<const Bits*>(from + i * kChunks * 16));
  }

 private:
  __device__ __forceinline__ static void copy_some(Bits* to, const Bits* from, uint32_t count) {
    Bits found[kPerChunk];
#pragma unroll
    for (uint32_t i = 0; i < kPerChunk; ++i) found[i] = i < count ? from[i] : Bits(0);
#pragma unroll
    for (uint32_t i = 0; i < kPerChunk; ++i) to[i] = found[i];
  }
};

// The inputs of a map M, some of which pass through shared memory.
template <class M>
struct TileInputs {
  using Params = typename M::Params;
  using Inputs = typename M::Inputs;
  template <int k>
  using Transposed = TransposedTile<typename Stored<typename M::template InputOf<k>::Type>::Bits, M::kTile, M::kVec, M::kUnroll>;

  template <int... k>
  static __device__ __forceinline__ void fetch_transposed(unsigned char* shared, const Params& p, const int64_t (&at)[M::kOperands],
                                                          uint32_t rows, uint32_t columns, Indices<k...>) {
    (fetch_one<k>(shared, p, at[k], rows, columns), ...);
  }
  template <int... k>
  static __device__ __forceinline__ void take_transposed(Inputs& in, const unsigned char* shared, const Params& p, uint32_t row,
                                                         uint32_t column, Indices<k...>) {
    (take_one<k>(in, shared, p, row, column), ...);
  }
  template <int... k>
  static __device__ __forceinline__ void fetch_beside(Inputs& in, const Params& p, const int64_t (&at)[M::kOperands], int count,
                                                      Indices<k...>) {
    (fetch_apart<k>(in, p, at[k], count), ...);
  }

 private:
  template <int k>
  static __device__ __forceinline__ void fetch_one(unsigned char* shared, const Params& p, int64_t at, uint32_t rows,
                                                   uint32_t columns) {
    if (p.transposed >> k & 1)
      Transposed<k>::fetch(shared + p.tile_at[k], p.operand[k], at, p.stride[k][p.rank - 1], p.wide >> k & 1, rows, columns);
  }
  template <int k>
  static __device__ __forceinline__ void take_one(Inputs& in, const unsigned char* shared, const Params& p, uint32_t row,
                                                  uint32_t column) {
    if (p.transposed >> k & 1) Transposed<k>::take(in.template get<k>(), shared + p.tile_at[k], row, column);
  }
  template <int k>
  static __device__ __forceinline__ void fetch_apart(Inputs& in, const Params& p, int64_t at, int count) {
    if (!(p.transposed >> k & 1))
      in.template get<k>().load_apart(p.operand[k], at, p.stride[k][p.rank - 1], p.wide >> k & 1, count);
  }
};

template <class M, class Params>
struct MapTile {
  using Tiled = TileInputs<M>;
  using OfInputs = typename M::OfInputs;
  static constexpr uint32_t kAcross = M::kTile / M::kVec, kDown = kTileThreads / kAcross, kRounds = (M::kTile + kDown - 1) / kDown;
  static constexpr uint32_t kAtOnce = M::kUnroll > 1 && kRounds % 2 == 0 ? 2 : 1;

  const Params& p;
  uint32_t rows, row;        // valid rows, and the first row of this thread
  int count;                 // elements of this thread's vectors
  int64_t at[M::kOperands];  // the offsets of the tile, and later of the thread

  __device__ __forceinline__ explicit MapTile(const Params& params) : p(params), row(threadIdx.x / kAcross) {
    const uint32_t line = quotient(blockIdx.x, p.by_vectors), outer = quotient(line, p.by_rows);
    const int64_t left = int64_t{blockIdx.x - line * p.vectors} * M::kTile, top = int64_t{line - outer * p.rows} * M::kTile;
    uint32_t first;
    locate_outer<M::kOperands>(p, outer, p.rank - 2, at, first);
    rows = static_cast<uint32_t>(min(p.extent[p.rank - 2] - top, int64_t{M::kTile}));
    count = static_cast<int>(min(p.extent[p.rank - 1] - left, int64_t{M::kTile}));
    move(left, top);
  }

  __device__ __forceinline__ void run() {
    unsigned char* const shared = dynamic_shared();
    allow_dependents();
    wait_for_previous();
    Tiled::fetch_transposed(shared, p, at, rows, static_cast<uint32_t>(count), OfInputs{});
    cp_async_commit();
    const uint32_t column = threadIdx.x % kAcross * M::kVec;
    count = min(count - static_cast<int>(column), M::kVec);
    move(column, row);
    typename M::Inputs in[kAtOnce];
#pragma unroll 1
    for (uint32_t round = 0; round < kRounds; round += kAtOnce) {
      fetch_beside(in, round);
      if (round == 0) {
        cp_async_wait<0>();
        __syncthreads();
      }
#pragma unroll
      for (uint32_t u = 0; u < kAtOnce; ++u)
        if (has(round + u)) finish(in[u], shared, round + u, column);
    }
  }

 private:
  __device__ __forceinline__ void move(int64_t columns, int64_t down) {
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) at[k] += columns * p.stride[k][p.rank - 1] + down * p.stride[k][p.rank - 2];
  }
  __device__ __forceinline__ bool has(uint32_t round) const { return count > 0 && row + round * kDown < rows; }
  __device__ __forceinline__ void offsets(uint32_t round, int64_t (&found)[M::kOperands]) const {
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) found[k] = at[k] + round * (kDown * p.stride[k][p.rank - 2]);
  }

  // Loads inputs that are not transposed.
  __device__ __forceinline__ void fetch_beside(typename M::Inputs (&in)[kAtOnce], uint32_t round) const {
    int64_t here[M::kOperands];
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      offsets(round + u, here);
      if (has(round + u)) Tiled::fetch_beside(in[u], p, here, count, OfInputs{});
    }
  }
  __device__ __forceinline__ void finish(typename M::Inputs& in, const unsigned char* shared, uint32_t round, uint32_t column) const {
    int64_t here[M::kOperands];
    Tiled::take_transposed(in, shared, p, row + round * kDown, column, OfInputs{});
    typename M::Outputs out = map_values<M>(in, p);
    offsets(round, here);
    M::store(out, p, here, 0, count);
  }
};

}  // namespace opfacade
