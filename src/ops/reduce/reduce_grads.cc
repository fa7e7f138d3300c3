// Gradient rules of the reductions and scans.
#include "ops/grad.h"
#include "ops/reduce/reduce.h"

namespace trireme::ops {
namespace {

/// Values of a reduction's backward pass: x, and y and dy reshaped so that reduced dimensions are 1.
struct Reduced {
  explicit Reduced(GradBuilder& g) : x(g.in(0)) {
    const std::vector<bool> reduced = reduced_axes(g.view());
    tensor::Dims kept = g.dims(x);
    for (size_t d = 0; d < kept.size(); ++d) {
      if (!reduced[d]) continue;
      axes.push_back(static_cast<int64_t>(d));
      terms *= kept[d];
      kept[d] = 1;
    }
    dy = g.reshape(g.grad(), kept);
    y = g.reshape(g.out(), kept);
  }
  ValueId x, y, dy;
  std::vector<int64_t> axes;
  int64_t terms = 1;
};

/// Broadcasts dy over the reduced dimensions.
ValueId spread(GradBuilder& g, ValueId dy) { return g.expand(dy, g.dims(g.in(0))); }

/// Elements that equal the extreme share its gradient evenly, as in PyTorch's amax.
ValueId extreme_gradient(GradBuilder& g, const Reduced& r) {
  const ValueId hits = g.op("cast_like", {g.op("equal", {r.x, r.y}), r.x});
  return g.mul(hits, g.div(r.dy, g.reduce_sum(hits, r.axes, true)));
}

/// The gradient of an element is the product of the others, from exclusive products of both sides: correct
/// for zeros.
ValueId product_gradient(GradBuilder& g, const Reduced& r) {
  const tensor::Dims x = g.dims(r.x);
  std::vector<int64_t> perm, inverse(x.size());
  for (int64_t d = 0; d < static_cast<int64_t>(x.size()); ++d) {
    if (std::find(r.axes.begin(), r.axes.end(), d) == r.axes.end()) perm.push_back(d);
  }
  perm.insert(perm.end(), r.axes.begin(), r.axes.end());
  tensor::Dims moved;
  for (size_t i = 0; i < perm.size(); ++i) {
    inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
    moved.push_back(x[static_cast<size_t>(perm[i])]);
  }
  const int64_t rows = tensor::element_count(g.dims(r.dy));
  const ValueId flat = g.reshape(g.transpose(r.x, perm), {rows, r.terms});
  const ValueId axis = g.constant(tensor::Tensor::scalar(int64_t{1}));
  const ValueId before = g.op("cum_prod", {flat, axis}, {{"exclusive", int64_t{1}}});
  const ValueId after = g.op("cum_prod", {flat, axis}, {{"exclusive", int64_t{1}}, {"reverse", int64_t{1}}});
  const ValueId others = g.transpose(g.reshape(g.mul(before, after), moved), inverse);
  return g.mul(r.dy, others);
}

ValueId l2_gradient(GradBuilder& g, const Reduced& r) {
  const ValueId zero = g.scalar(0, r.y);
  const ValueId slope = g.op("where", {g.op("equal", {r.y, zero}), zero, g.div(r.dy, r.y)});
  return g.mul(r.x, slope);
}

ValueId gradient(GradBuilder& g, Reduction kind, const Reduced& r) {
  switch (kind) {
    case Reduction::sum: return spread(g, r.dy);
    case Reduction::mean: return spread(g, g.scaled(r.dy, 1.0 / static_cast<double>(r.terms)));
    case Reduction::max:
    case Reduction::min: return extreme_gradient(g, r);
    case Reduction::prod: return product_gradient(g, r);
    case Reduction::l1: return g.mul(r.dy, g.op("sign", {r.x}));
    case Reduction::l2: return l2_gradient(g, r);
    case Reduction::log_sum: return spread(g, g.div(r.dy, g.op("exp", {r.y})));
    case Reduction::log_sum_exp: return g.mul(r.dy, g.op("exp", {g.sub(r.x, r.y)}));
    case Reduction::sum_square: return g.mul(r.x, g.scaled(r.dy, 2));
  }
  return ir::kNoValue;
}

int64_t is_forward(GradBuilder& g) { return g.attrs().get_int("reverse", 0) == 0 ? 1 : 0; }

}  // namespace

ir::GradFn reduce_grad(Reduction kind) {
  return rule([kind](GradBuilder& g) {
    Gradients out = g.none();
    out[0] = gradient(g, kind, Reduced(g));
    return out;
  });
}

Gradients cum_sum_rule(GradBuilder& g) {
  ir::Attrs attrs = g.attrs();
  attrs.set("reverse", is_forward(g));
  return {g.op("cum_sum", {g.grad(), g.in(1)}, attrs), std::nullopt};
}

Gradients cum_prod_rule(GradBuilder& g) {
  return {g.op("cum_prod_grad", {g.grad(), g.in(0), g.in(1)}, g.attrs()), std::nullopt};
}

std::vector<ValueId> expand_log_sum_exp(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  GradBuilder g(graph, node, {});
  const tensor::DType type = g.type(g.in(0)).dtype;
  const bool is_half = type == tensor::DType::f16 || type == tensor::DType::bf16;
  const ValueId x = is_half ? g.op("cast", {g.in(0)}, {{"to", int64_t{1}}}) : g.in(0);
  std::vector<int64_t> axes;
  tensor::Dims kept;
  const std::vector<bool> reduced = reduced_axes(g.view());
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (reduced[d]) axes.push_back(static_cast<int64_t>(d));
    if (!reduced[d] || g.attrs().get_int("keepdims", 1) != 0) kept.push_back(reduced[d] ? 1 : g.dims(x)[d]);
  }
  if (axes.empty()) return {g.in(0)};
  const ir::Attrs keep{{"keepdims", int64_t{1}}};
  const ValueId most = g.op("reduce_max", {x, g.ints(axes)}, keep);
  // If there are no terms or the largest is infinite, no shift is needed.
  const ValueId shift = g.op("where", {g.op("is_inf", {most}), g.scalar(0, x), most});
  const ValueId sum = g.reduce_sum(g.op("exp", {g.sub(x, shift)}), axes, true);
  const ValueId y = g.reshape(g.add(g.op("log", {sum}), shift), kept);
  return {is_half ? g.op("cast_like", {y, g.in(0)}) : y};
}

}  // namespace trireme::ops
