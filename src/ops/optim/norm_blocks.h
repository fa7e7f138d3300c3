// Blocks of a tensor whose squares are summed apart, so that ranks that hold some of them agree with one that
// holds all.
#pragma once

#include "tensor/shape.h"

namespace trireme::ops {

/// A tensor as [outer, blocks, inner] around one of its dimensions.
struct NormBlocks {
  int dim = 0;
  int64_t blocks = 1;
};

/// Which dimension of a parameter is cut in how many equal blocks: at most 64 along the first dimension, 16
/// along another, a power of two. Depends on extents only. The first dimension, unless it has fewer than 8
/// blocks and another has more.
NormBlocks norm_blocks(const tensor::Dims& dims);

}  // namespace trireme::ops
