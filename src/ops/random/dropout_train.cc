// dropout_train: drops elements by a mask that depends on seed, step, node and element alone.
#include "ops/grad.h"
#include "ops/random/random_ops.h"
#include "ops/table.h"

namespace trireme::ops {

ir::OpSchema dropout_train_schema() {
  ir::OpSchema s{
      .name = "dropout_train",
      .doc =
          "y = x / (1 - ratio) where Philox(seed; op, step; element) keeps it, else 0; operands x and rng "
          "i64 [3] = seed, step, index of the first row in the whole batch",
      .min_in = 2,
      .max_in = 2,
      .attrs = {{"ratio", "float", "probability of an element to be dropped, in [0, 1), default 0.5"},
                {"op", "int", "tells the dropouts of a graph apart, default 0"},
                {"rows", "int", "batch rows that x holds, default its first extent"}},
      .infer = [](const ir::NodeView& n) {
        const double ratio = n.attrs.get_float("ratio", 0.5);
        base::require(ratio >= 0 && ratio < 1, "the dropout ratio is in [0, 1), given: ", ratio);
        base::require(n.in[1].dtype == tensor::DType::i64, "rng is i64 [3], given: ", n.in[1].to_string());
        base::require(!n.in[1].shape.is_static() || n.in[1].shape == tensor::Shape{3},
                      "rng is i64 [3], given: ", n.in[1].to_string());
        return std::vector{n.in[0]};
      }};
  s.cost = [](const ir::NodeView& n) {
    return ir::Cost{.flop = 4 * static_cast<double>(n.in[0].shape.elements().value_or(0)),
                    .bytes = 2 * static_cast<double>(tensor::bytes_of(n.in[0]))};
  };
  // Multiplication by a fixed mask is its own adjoint: the same draws on dy.
  s.grad = rule([](GradBuilder& g) -> Gradients {
    Gradients out = g.none();
    ir::Attrs attrs = g.attrs();
    out[0] = g.op("dropout_train", {g.grad(), g.in(1)}, std::move(attrs));
    return out;
  });
  return s;
}

}  // namespace trireme::ops
