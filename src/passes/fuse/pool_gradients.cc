// Fuses the gradient of a ReLU into the gradient of the pooling after it.
#include "passes/fuse/pool_gradients.h"

#include "passes/rewriter.h"

namespace trireme::passes {

size_t fuse_pool_gradients(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("relu_grad", [&](ir::NodeId, const ir::Node& relu) {
    std::optional<ir::Node> pool = rw.producer(relu.in[0], "max_pool_nhwc_grad");
    if (!pool || !rw.single_use(relu.in[0]) || pool->in[0] != relu.in[1]) return false;
    pool->attrs.set("rectified", int64_t{1});
    rw.replace(relu.out[0], rw.add_all(pool->op_name(), *pool, 1)[0]);
    return true;
  });
}

}  // namespace trireme::passes
