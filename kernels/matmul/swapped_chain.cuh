// Sums of 16-bit operands with rows of x on N of wgmma: as one chain, or in segments.
#pragma once
#include "kernels/matmul/chain.cuh"
#include "kernels/matmul/swapped_reader.cuh"
#include "kernels/ptx/wgmma_narrow.cuh"

namespace opfacade {

template <class C>
struct SwappedSums {
  template <int kWidth>
  using Chain = ChainConsumer<C, SwappedReader<C>, kWidth>;
  template <int kWidth>
  using Segments = SegmentConsumer<C, SwappedReader<C>, kWidth>;
};
template <class C>
using SwappedChain = SwappedConsumer<C, SwappedSums<C>::template Chain>;
template <class C>
using SwappedSegments = SwappedConsumer<C, SwappedSums<C>::template Segments>;

}  // namespace opfacade
