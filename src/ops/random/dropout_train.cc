// dropout_train: drops elements by a mask that depends only on seed, step, node and element.
#include "ops/cut_notation.h"
#include "ops/grad.h"
#include "ops/random/random_ops.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

/// A part draws its share of the whole's mask, since elements are numbered in the whole tensor.
void localise_dropout(ir::LocalNode& n) {
  const tensor::Dims whole = n.global.in_dims(0);
  if (n.in[0] == whole) return;
  tensor::Dims begin = n.global.attrs.get_ints("begin", tensor::Dims(whole.size(), 0));
  for (size_t d = 0; d < begin.size(); ++d) begin[d] += n.in_begin[0][d];
  n.attrs.set("begin", begin);
  n.attrs.set("dims", n.global.attrs.get_ints("dims", whole));
}

}  // namespace

ir::OpSchema dropout_train_schema() {
  ir::OpSchema s{
      .name = "dropout_train",
      .doc =
          "y = x / (1 - ratio) where Philox(seed; op, step; element) keeps it, else 0; operands x and rng "
          "i64 [3] = seed, step, index of the first row in the whole batch",
      .precision = kRounds,
      .half_rows = {.operands = 0b1},
      .dims = "...,r->...",
      .min_in = 2,
      .max_in = 2,
      .attrs = {{"ratio", "float", "probability of an element to be dropped, in [0, 1), default 0.5"},
                {"op", "int", "tells the dropouts of a graph apart, default 0"},
                {"rows", "int", "batch rows of the whole tensor, default its first extent"},
                {"dims", "ints", "extents of the tensor that x is a part of, default those of x"},
                {"begin", "ints", "first index of the part in each dimension, default 0"}},
      .infer = [](const ir::NodeView& n) {
        const double ratio = n.attrs.get_float("ratio", 0.5);
        base::require(ratio >= 0 && ratio < 1, "the dropout ratio is in [0, 1), given: ", ratio);
        base::require(n.in[1].dtype == tensor::DType::i64, "rng is i64 [3], given: ", n.in[1].to_string());
        base::require(!n.in[1].shape.is_static() || n.in[1].shape == tensor::Shape{3},
                      "rng is i64 [3], given: ", n.in[1].to_string());
        return std::vector{n.in[0]};
      }};
  s.cut = [](const ir::NodeView& n) {
    const std::string x = letters(n.in[0].shape.rank());
    ir::CutRule r{.notation = CutNotation(n).in(0, x).out(0, x).text(), .linear = {1}, .uneven = x};
    // A part must be a box of the whole, so it may not consist of sections.
    for (size_t d = 0; d < n.in[0].shape.rank(); ++d) r.sections.push_back({false, 0, d, 1});
    return r;
  };
  s.localise = localise_dropout;
  s.cost = [](const ir::NodeView& n) {
    return ir::Cost{.flop = 4 * static_cast<double>(n.in[0].shape.elements().value_or(0)),
                    .bytes = 2 * static_cast<double>(tensor::bytes_of(n.in[0]))};
  };
  // Multiplication by a fixed mask is its own adjoint: dy gets the same draws.
  s.grad = rule([](GradBuilder& g) -> Gradients {
    Gradients out = g.none();
    ir::Attrs attrs = g.attrs();
    out[0] = g.op("dropout_train", {g.grad(), g.in(1)}, std::move(attrs));
    return out;
  });
  return s;
}

}  // namespace trireme::ops
