// Asks an operator's kernels about a node that is not in the graph yet.
#include "passes/cpu_kernels.h"

#include "ops/table.h"

namespace trireme::passes {

bool has_cpu_kernel(const ir::Graph& graph, const ir::Node& node, size_t results,
                    const std::vector<tensor::TensorType>& made) {
  ir::NodeView view{.attrs = node.attrs,
                    .in = {},
                    .out = {},
                    .known = std::vector<const tensor::Tensor*>(node.in.size(), nullptr),
                    .is_present = {},
                    .out_count = results};
  size_t next = 0;
  for (ir::ValueId id : node.in) {
    view.in.push_back(id == ir::kNoValue ? made.at(next++) : graph.type(id));
    view.is_present.push_back(true);
  }
  view.out = ir::infer_types(node.op->schema, view);
  return ops::choose_kernel(*node.op, view, tensor::DeviceKind::cpu) != nullptr;
}

}  // namespace trireme::passes
