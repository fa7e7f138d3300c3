// identity: y = x; a view of its operand.
#include "ir/schema.h"
#include "ops/cut.h"
#include "ops/grad.h"
#include "ops/table.h"

namespace trireme::ops {

ir::OpSchema identity_schema() {
  return {.name = "identity",
          .doc = "y = x",
          .moves = 0b1,
          .is_rearrangement = true,
          .dims = "...->...",
          .cut = elementwise_cut({0b1}),
          .infer = [](const ir::NodeView& n) { return std::vector{n.in[0]}; },
          .grad = rule([](GradBuilder& g) -> Gradients { return {g.grad()}; }),
          .onnx = "Identity",
          .is_view = true};
}

}  // namespace trireme::ops
