// Computes the gradient of a bias within the weight gradient of its convolution.
#include "passes/fuse/conv_bias_sums.h"

#include "passes/cpu_kernels.h"

namespace trireme::passes {

bool sums_all_pixels(const Rewriter& rw, const ir::Node& sum) {
  return sum.in.size() == 2 && sum.attrs.get_int("keepdims", 1) == 0 &&
         rw.ints(sum.in[1]) == std::vector<int64_t>{0, 1, 2};
}

size_t fuse_conv_bias_sums(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("conv_nhwc_grad_w", [&](ir::NodeId, const ir::Node& weights) {
    if (weights.out.size() != 1 || !has_cpu_kernel(graph, weights, 2)) return false;
    for (const ir::Node& node : graph.nodes()) {
      if (node.op_name() != "reduce_sum" || node.in[0] != weights.in[1] || !sums_all_pixels(rw, node))
        continue;
      const ir::ValueId sum = node.out[0];
      const std::vector<ir::ValueId> both = rw.add_all("conv_nhwc_grad_w", weights, 2);
      rw.replace(weights.out[0], both[0]);
      rw.replace(sum, both[1]);
      return true;
    }
    return false;
  });
}

}  // namespace trireme::passes
