// How a tensor is cut into blocks whose squares are summed separately.
#include "ops/optim/norm_blocks.h"

#include <numeric>

namespace trireme::ops {

NormBlocks norm_blocks(const tensor::Dims& dims) {
  // Very small blocks cost more than their sums. If blocks are in an inner dimension, each run between them
  // is one call.
  constexpr int64_t kLarge = 1 << 16, kMost = 64, kFew = 16, kEnough = 8;
  if (dims.empty()) return {};
  const bool is_large = tensor::element_count(dims) >= kLarge;
  NormBlocks best{0, std::gcd(dims[0], is_large ? kMost : kFew)};
  for (size_t d = 1; d < dims.size() && best.blocks < kEnough; ++d) {
    const int64_t blocks = std::gcd(dims[d], kFew);
    if (blocks > best.blocks) best = {static_cast<int>(d), blocks};
  }
  if (best.blocks == 0) best.blocks = 1;  // the tensor has no elements
  return best;
}

}  // namespace trireme::ops
