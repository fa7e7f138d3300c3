// The gradient of a rectifier moves into the gradient of the pooling behind it.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// relu_grad(max_pool_nhwc_grad(y, dp), y) -> one max_pool_nhwc_grad that looks at the sign of the maximum it
/// finds anyway: the rectified image is passed over once instead of twice. Run on the graph of a step.
size_t fuse_pool_gradients(ir::Graph& graph);

}  // namespace trireme::passes
