// Parameters of quantisation by blocks of a matrix, shared by the kernels and their bindings.
#pragma once
#include <stdint.h>

namespace opfacade {

struct BlocksParams {
  const void* from;
  void* to;
  void* scale;
  int64_t rows, columns;
  int64_t from_stride[2], to_stride[2], scale_stride[2];  // in elements
  int32_t across;                                         // blocks per row of blocks
  float least;                                            // factor of the largest |x|
  bool wide;                                              // vectors of both tensors are aligned
  const int32_t* num_valid;
};

}  // namespace opfacade
