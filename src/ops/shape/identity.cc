// identity: y = x; a view of its operand.
#include "ir/schema.h"
#include "ops/table.h"

namespace trireme::ops {

ir::OpSchema identity_schema() {
  return {.name = "identity",
          .doc = "y = x",
          .infer = [](const ir::NodeView& n) { return std::vector{n.in[0]}; },
          .why_no_grad = "its gradient is the gradient of its result, which autodiff passes through",
          .onnx = "Identity",
          .is_view = true};
}

}  // namespace trireme::ops
