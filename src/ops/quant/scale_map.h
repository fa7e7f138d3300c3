// Which scale belongs to which element: per tensor, per index of an axis, or per block along it.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

/// The tensor as [outer, n, inner] with scales [n] (per axis) or [outer, blocks, inner] (blocked).
struct ScaleMap {
  enum class Kind : uint8_t { tensor, axis, blocked };
  Kind kind = Kind::tensor;
  int64_t outer = 1, n = 1, inner = 1;
  int64_t block = 1, blocks = 1;

  /// Index of the scale of element `at`.
  int64_t scale_of(int64_t at) const {
    if (kind == Kind::tensor) return 0;
    const int64_t index = at / inner % n;
    if (kind == Kind::axis) return index;
    return (at / (inner * n) * blocks + index / block) * inner + at % inner;
  }
};

/// Reads axis and block_size of quantize_linear and dequantize_linear; operand 1 is the scale.
/// Throws invalid_argument if the scale's shape fits none of the three forms.
ScaleMap scale_map(const ir::NodeView& node);

/// The same check while shapes may still be symbolic.
void check_scale_shape(const ir::NodeView& node);

}  // namespace trireme::ops
