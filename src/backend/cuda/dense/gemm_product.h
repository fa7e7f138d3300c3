// What gemm.cc asks of a library of products: one in builds with the toolkit, one for the emulated device.
#pragma once

#include "backend/cuda/dense/gemm.h"

namespace trireme::cuda {

/// The product with those parts of the finish that `shape.finish` still names; null if the library cannot do
/// all of it in one pass. A null device: the plan is only asked for its workspace.
std::unique_ptr<GemmPlan> make_product(const GemmPlace& place, const GemmShape& shape,
                                       const GemmOptions& options);

/// Whether the finish has parts besides its sums.
inline bool has_finish(const GemmFinish& f) {
  return f.bias || f.residual || f.act.kind != Activation::none || f.writes_aux || f.is_gradient;
}

/// Leading dimensions filled in.
GemmShape with_leading_dimensions(GemmShape shape);

}  // namespace trireme::cuda
