// row_linear: products of few rows with several weights at once, preceded by a norm and followed by a
// residual or a gate, for devices where each launch has a cost.
#include "ops/dense/row_linear.h"

#include "ops/precision_rules.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using ir::ValueId;
using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

size_t weights_of(size_t operands) {
  return operands <= kRlWeights ? 0 : (operands - kRlWeights + kRlPerWeight - 1) / kRlPerWeight;
}

/// The text of an operand's type for messages; the operand may be absent.
std::string text_of(const ir::NodeView& n, size_t i) { return n.present(i) ? n.in[i].to_string() : "absent"; }

bool is_gated(const ir::Attrs& attrs) { return attrs.get_int("gated", 0) != 0; }

std::vector<TensorType> infer_row_linear(const ir::NodeView& n) {
  const size_t count = weights_of(n.in.size());
  base::require(count >= 1, "row_linear without weights");
  std::vector<TensorType> out;
  for (size_t i = 0; i < count; ++i) {
    const Shape &x = n.in[kRlX].shape, &w = n.in[row_linear_operand(i, kRlWeight)].shape;
    if (!x.has_rank() || !w.has_rank()) {
      out.push_back({n.in[kRlX].dtype, Shape::unknown_rank()});
      continue;
    }
    base::require(x.rank() >= 1 && w.rank() == 2, "row_linear takes [..., k] and matrices, got ",
                  x.to_string(), " and ", w.to_string());
    std::vector<Dim> dims = x.dims();
    dims.back() = w[0];
    out.push_back({n.in[kRlX].dtype, Shape(std::move(dims))});
  }
  bool is_static = true;
  for (size_t i = 0; i < n.in.size(); ++i)
    is_static = is_static && (!n.present(i) || n.in[i].shape.is_static());
  if (is_static) plan_row_linear(n);
  if (is_gated(n.attrs)) out.resize(1);
  return out;
}

/// Builds the separate nodes that the operator stands for.
class Expansion {
 public:
  Expansion(ir::Graph& graph, const ir::Node& node) : graph_(graph), node_(node) {}

  std::vector<ValueId> run() {
    const size_t count = weights_of(node_.in.size());
    const ValueId x = normalised();
    if (is_gated(node_.attrs)) {
      const ValueId gate = product(x, 0, true), up = product(x, 1, false);
      return {graph_.add1(table().need("mul"), {gate, up}, {}, node_.from)};
    }
    std::vector<ValueId> out;
    for (size_t i = 0; i < count; ++i) out.push_back(product(x, i, true));
    return out;
  }

 private:
  ValueId operand(size_t i) const { return i < node_.in.size() ? node_.in[i] : ir::kNoValue; }

  ValueId normalised() {
    if (operand(kRlNorm) == ir::kNoValue) return operand(kRlX);
    return graph_.add1(table().need("rms_norm"), {operand(kRlX), operand(kRlNorm)},
                       {{"epsilon", node_.attrs.get_float("epsilon", 1e-5)}}, node_.from);
  }

  ValueId product(ValueId x, size_t i, bool is_finished) {
    const ValueId w = operand(row_linear_operand(i, kRlWeight)),
                  bias = operand(row_linear_operand(i, kRlBias));
    if (node_.attrs.get_int("bits", 0) == 0) {
      ir::Attrs attrs;
      if (is_finished) attrs = node_.attrs;
      for (const char* name : {"epsilon", "gated", "bits", "group"}) attrs.erase(name);
      attrs.set("transposed", int64_t{1});
      std::vector<ValueId> in{x, w, bias, is_finished ? operand(kRlResidual) : ir::kNoValue};
      while (in.back() == ir::kNoValue) in.pop_back();
      return graph_.add1(table().need("linear"), std::move(in), attrs, node_.from);
    }
    std::vector<ValueId> in{x, w, operand(row_linear_operand(i, kRlScale)),
                            operand(row_linear_operand(i, kRlZero)), bias};
    while (in.back() == ir::kNoValue) in.pop_back();
    const ir::Attrs form{{"bits", node_.attrs.get_int("bits", 8)},
                         {"group", node_.attrs.get_int("group", 64)}};
    const ValueId y = graph_.add1(table().need("weight_only_linear"), std::move(in), form, node_.from);
    return is_finished ? expand_finish(graph_, y, operand(kRlResidual), activation_of(node_.attrs)) : y;
  }

  ir::Graph& graph_;
  ir::Node node_;  // a copy: the graph grows
};

std::vector<ValueId> expand_row_linear(ir::Graph& graph, const ir::Node& node) {
  return Expansion(graph, node).run();
}

ir::Cost row_linear_cost(const ir::NodeView& n) {
  const RowLinearPlan p = plan_row_linear(n);
  ir::Cost c;
  for (size_t i = 0; i < n.in.size(); ++i)
    c.bytes += n.present(i) ? static_cast<double>(bytes_of(n.in[i])) : 0;
  for (const TensorType& t : n.out) c.bytes += static_cast<double>(bytes_of(t));
  for (const int64_t width : p.n) c.flop += 2.0 * static_cast<double>(p.rows * p.k * width);
  return c;
}

}  // namespace

RowLinearPlan plan_row_linear(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(kRlX);
  RowLinearPlan p{.rows = 1,
                  .k = x.back(),
                  .n = {},
                  .bits = static_cast<int>(n.attrs.get_int("bits", 0)),
                  .group = n.attrs.get_int("group", 0),
                  .gated = is_gated(n.attrs),
                  .epsilon = static_cast<float>(n.attrs.get_float("epsilon", 1e-5)),
                  .act = activation_of(n.attrs)};
  for (size_t i = 0; i + 1 < x.size(); ++i) p.rows *= x[i];
  for (size_t i = 0; i < weights_of(n.in.size()); ++i) {
    const size_t at = row_linear_operand(i, kRlWeight), bias = row_linear_operand(i, kRlBias);
    const tensor::Dims w = n.in_dims(at);
    const bool is_whole = p.bits == 0 ? n.in[at].dtype == n.in[kRlX].dtype && w[1] == p.k
                                      : n.in[at].dtype == DType::u8 && w[1] == p.k * p.bits / 8;
    base::require(is_whole, "weight ", i, " of row_linear is ", text_of(n, at), " for rows of ", p.k);
    base::require(!n.present(bias) || n.in_dims(bias) == tensor::Dims{w[0]}, "bias ", i, " of row_linear is ",
                  text_of(n, bias));
    if (p.bits != 0) {
      const Shape want = Shape::of({w[0], p.group == 0 ? 0 : p.k / p.group});
      base::require(n.present(row_linear_operand(i, kRlScale)) &&
                        n.in[row_linear_operand(i, kRlScale)] == TensorType{DType::f32, want},
                    "scales ", i, " of row_linear are ", text_of(n, row_linear_operand(i, kRlScale)));
    }
    p.n.push_back(w[0]);
  }
  base::require(!p.gated || (p.n.size() == 2 && p.n[0] == p.n[1]),
                "a gate of row_linear takes two equal weights");
  base::require(!n.present(kRlNorm) || n.in_dims(kRlNorm) == tensor::Dims{p.k}, "the norm's scale is ",
                text_of(n, kRlNorm), " for rows of ", p.k);
  base::require(!n.present(kRlResidual) || (p.n.size() == 1 && n.in[kRlResidual].dtype == n.in[kRlX].dtype &&
                                            tensor::element_count(n.in_dims(kRlResidual)) == p.rows * p.n[0]),
                "a residual of row_linear is ", text_of(n, kRlResidual));
  return p;
}

ir::OpSchema row_linear_schema() {
  std::vector<ir::AttrSpec> attrs = activation_attrs();
  attrs.push_back({"bits", "int", "8 or 4: weights are u8 as docs/formats.md stores them; 0: floats"});
  attrs.push_back({"epsilon", "float", "of the norm, default 1e-5"});
  attrs.push_back({"gated", "int", "the one result is act(x w0') (x w1')"});
  attrs.push_back({"group", "int", "stored weights along k that share a scale"});
  return {
      .name = "row_linear",
      .doc =
          "products of few rows by several weights, y_i = act(rms_norm(x) w_i' + bias_i + residual): "
          "operands x "
          "[..., k], the norm's scale, residual, then for each weight w [n, k], scales, zero points, bias",
      .precision = kProduct,
      .is_product = true,
      .why_no_cut = "made of a rank's own part of a graph",
      .min_in = 1,
      .max_in = kRlWeights + 3 * kRlPerWeight,
      .max_out = 3,
      .attrs = std::move(attrs),
      .infer = infer_row_linear,
      .expand = expand_row_linear,
      .cost = row_linear_cost,
      .why_no_grad = "made for steps of inference, behind differentiation"};
}

/// On the CPU, the operators that it expands to have kernels.
std::vector<ir::Kernel> row_linear_cpu_kernels() { return {}; }

}  // namespace trireme::ops
