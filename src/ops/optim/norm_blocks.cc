// Blocks of a tensor whose squares are summed apart.
#include "ops/optim/norm_blocks.h"

#include <numeric>

namespace trireme::ops {

NormBlocks norm_blocks(const tensor::Dims& dims) {
  // A block of a few elements costs more than its sum; a run between the blocks of an inner dimension is one
  // call.
  constexpr int64_t kLarge = 1 << 16, kMost = 64, kFew = 16, kEnough = 8;
  if (dims.empty()) return {};
  const bool is_large = tensor::element_count(dims) >= kLarge;
  NormBlocks best{0, std::gcd(dims[0], is_large ? kMost : kFew)};
  for (size_t d = 1; d < dims.size() && best.blocks < kEnough; ++d) {
    const int64_t blocks = std::gcd(dims[d], kFew);
    if (blocks > best.blocks) best = {static_cast<int>(d), blocks};
  }
  if (best.blocks == 0) best.blocks = 1;  // of no elements
  return best;
}

}  // namespace trireme::ops
