// cross_entropy and cross_entropy_grad: the loss of classifiers and language models, summed over valid rows.
#include "ops/grad.h"
#include "ops/loss/loss_cuts.h"
#include "ops/loss/loss_kernels.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

std::vector<ir::AttrSpec> entropy_attrs() {
  return {{"ignore_index", "int", "rows with this target count nowhere, default -100"},
          {"label_smoothing", "float", "share s of the mass spread evenly over all classes, default 0"},
          {"z_loss", "float", "factor of the square of log sum exp, default 0"},
          {"padded", "int", "scores behind the last class, which count nowhere, default 0"}};
}

/// Adds the attributes of an op that computes only some of the classes.
std::vector<ir::AttrSpec> with_part(std::vector<ir::AttrSpec> attrs) {
  attrs.push_back({"first", "int", "the class of the first score, default 0"});
  attrs.push_back({"classes", "int", "classes in all, default as many as scores that count"});
  return attrs;
}

/// Checks logits [rows..., classes] against target [rows...] and returns [rows...].
Shape rows_of(const ir::NodeView& n) {
  const Shape &x = n.in[0].shape, &target = n.in[1].shape;
  base::require(n.in[1].dtype == DType::i64 || n.in[1].dtype == DType::i32,
                "targets are i32 or i64, given: ", name_of(n.in[1].dtype));
  const double smooth = n.attrs.get_float("label_smoothing", 0);
  base::require(smooth >= 0 && smooth < 1, "label_smoothing is in [0, 1), given: ", smooth);
  if (!x.has_rank()) return target;
  base::require(x.rank() >= 1, "cross entropy of a scalar has no class axis");
  require_padding(n);
  const Shape rows(std::vector<Dim>(x.dims().begin(), x.dims().end() - 1));
  if (x.is_static() && target.is_static()) {
    base::require(target == rows, "targets ", target.to_string(), " for scores ", x.to_string());
  }
  return rows;
}

double bytes(const TensorType& t) { return static_cast<double>(tensor::bytes_of(t)); }
double elements(const TensorType& t) { return static_cast<double>(t.shape.elements().value_or(0)); }

/// d/dlogits of the loss by cross_entropy_grad; a gradient of log_sum_exp flows back through its softmax.
Gradients entropy_rule(ir::Graph& graph, const ir::Node& node, std::span<const ValueId> out_grads) {
  GradBuilder g(graph, node, out_grads);
  Gradients out = g.none();
  const ValueId x = g.in(0);
  if (g.grad(0) != ir::kNoValue) {
    const bool saved = node.out.size() > 1 && node.out[1] != ir::kNoValue;
    const ValueId lse = saved ? node.out[1] : g.ops("cross_entropy", {x, g.in(1)}, g.attrs(), 2)[1];
    out[0] = g.op("cross_entropy_grad", {x, g.in(1), lse, g.grad(0)}, g.attrs());
  }
  if (g.grad(1) != ir::kNoValue) {
    if (g.attrs().get_int("padded", 0) != 0)
      base::fail_unsupported("a gradient of log sum exp over padded scores");
    tensor::Dims column = g.dims(g.grad(1));
    column.push_back(1);
    const ValueId p = g.op("softmax", {x}, {{"axis", int64_t{-1}}});
    // The log_sum_exp of an ignored row is the constant 0.
    const ValueId ignored =
        g.op("cast_like",
             {g.op("equal", {g.in(1), g.scalar(double(g.attrs().get_int("ignore_index", -100)), g.in(1))}),
              g.grad(1)});
    const ValueId kept = g.mul(g.grad(1), g.plus(g.neg(ignored), 1));
    ValueId term = g.mul(p, g.op("cast_like", {g.reshape(kept, column), x}));
    out[0] = out[0] ? g.add(*out[0], term) : term;
  }
  return out;
}

ir::OpSchema entropy_schema() {
  ir::OpSchema s{
      .name = "cross_entropy",
      .doc =
          "sum over rows of (1-s)(lse - x[t]) + s(lse - mean x) + z lse^2, lse = log sum exp x; further "
          "results: lse per row, number of rows that count, number of rows whose largest score is t's",
      .precision = kLoss,
      .half_rows = {.operands = 0b1},
      .keeps_results = true,
      .cut = cross_entropy_cut,
      .min_in = 2,
      .max_in = 2,
      .max_out = 4,
      .attrs = entropy_attrs(),
      .infer = [](const ir::NodeView& n) {
        const DType type = statistics_of(n.in[0].dtype);
        return std::vector<TensorType>{{type, Shape{}}, {type, rows_of(n)}, {type, Shape{}}, {type, Shape{}}};
      }};
  s.cost = [](const ir::NodeView& n) {
    return ir::Cost{.flop = 20 * elements(n.in[0]),
                    .bytes = bytes(n.in[0]) + bytes(n.in[1]) + 4 * elements(n.in[1])};
  };
  s.grad = entropy_rule;
  return s;
}

ir::OpSchema entropy_grad_schema() {
  ir::OpSchema s{
      .name = "cross_entropy_grad",
      .doc =
          "dloss ((1 + 2 z lse) exp(x - lse) - s/classes - (1-s)[i == t]), 0 in ignored rows; operands "
          "logits (all, or some of the classes), target, log_sum_exp, dloss",
      .half_rows = {.operands = 0b1},
      .cut = cross_entropy_grad_cut,
      .localise = localise_cross_entropy_grad,
      .min_in = 4,
      .max_in = 4,
      .attrs = with_part(entropy_attrs()),
      .infer = [](const ir::NodeView& n) {
        rows_of(n);
        base::require(!n.in[3].shape.has_rank() || n.in[3].shape.rank() == 0,
                      "dloss is a scalar, given: ", n.in[3].shape.to_string());
        return std::vector{n.in[0]};
      }};
  s.cost = [](const ir::NodeView& n) {
    return ir::Cost{.flop = 17 * elements(n.in[0]),
                    .bytes = 2 * bytes(n.in[0]) + bytes(n.in[1]) + bytes(n.in[2])};
  };
  s.why_no_grad = "second derivatives of the loss are not computed";
  return s;
}

}  // namespace

std::vector<ir::OpDef> cross_entropies_ops() {
  return {{entropy_schema(), cross_entropy_cpu_kernels()},
          {entropy_grad_schema(), cross_entropy_grad_cpu_kernels()}};
}

}  // namespace trireme::ops
