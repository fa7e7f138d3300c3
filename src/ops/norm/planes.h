// How norms over channels see a tensor: [batch, channels, points].
#pragma once

#include "ops/kernel_forms.h"

namespace trireme::ops {

/// Extents of a tensor viewed as [batch, channels, points].
struct Planes {
  int64_t batch, channels, points;
};

inline Planes planes_of(const tensor::Dims& x) {
  return {x[0], x.size() > 1 ? x[1] : 1, x.size() > 2 ? product(x, 2, x.size()) : 1};
}

/// What lrn and its gradient compute over x.
struct LrnPlan {
  Planes planes;
  int64_t size;
  double alpha, beta, bias;
};

/// The plan of a node whose operand i is x.
inline LrnPlan plan_lrn(const ir::NodeView& node, size_t i) {
  const ir::Attrs& a = node.attrs;
  return {planes_of(node.in_dims(i)), a.need_int("size"), a.get_float("alpha", 1e-4),
          a.get_float("beta", 0.75), a.get_float("bias", 1)};
}

}  // namespace trireme::ops
