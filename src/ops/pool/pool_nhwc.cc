// max_pool_nhwc, average_pool_nhwc, global_average_pool_nhwc: 2-D pooling over channels-last activations.
#include "ops/conv/window.h"
#include "ops/pool/pool_cuts.h"
#include "ops/pool/pool_grad.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Shape;

std::vector<tensor::TensorType> infer_window(const ir::NodeView& n) {
  const Shape& x = n.in[0].shape;
  base::require(x.rank() == 4, "channels-last pooling takes rank 4, got ", x.to_string());
  const std::vector<Dim> out = window_out(n.attrs, n.attrs.get_ints("kernel_shape"), {x[1], x[2]});
  return {{n.in[0].dtype, Shape({x[0], out[0], out[1], x[3]})}};
}

std::vector<tensor::TensorType> infer_global_nhwc(const ir::NodeView& n) {
  const Shape& x = n.in[0].shape;
  base::require(x.rank() == 4, "channels-last pooling takes rank 4, got ", x.to_string());
  return {{n.in[0].dtype, Shape({x[0], 1, 1, x[3]})}};
}

/// Expands to plain nodes: transpose to channels-first, the op in ONNX layout, transpose back.
ir::ExpandFn expand_to(std::string op) {
  return [op](ir::Graph& graph, const ir::Node& node) {
    const ir::OpDef& transpose = table().need("transpose");
    std::vector<ir::ValueId> first;
    for (ir::ValueId x : node.in)
      first.push_back(graph.add1(transpose, {x}, {{"perm", std::vector<int64_t>{0, 3, 1, 2}}}, node.from));
    const ir::ValueId y = graph.add1(table().need(op), std::move(first), node.attrs, node.from);
    return std::vector{graph.add1(transpose, {y}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}}, node.from)};
  };
}

ir::Cost window_cost(const ir::NodeView& n) {
  double taps = 1;
  for (int64_t k : n.attrs.get_ints("kernel_shape")) taps *= static_cast<double>(k);
  return {.flop = taps * static_cast<double>(n.out[0].shape.elements().value_or(0)),
          .bytes = static_cast<double>(tensor::bytes_of(n.in[0]) + tensor::bytes_of(n.out[0]))};
}

ir::Cost grad_cost(const ir::NodeView& n, size_t dy) {
  ir::Cost cost;
  for (const tensor::TensorType& t : n.in) cost.bytes += static_cast<double>(tensor::bytes_of(t));
  cost.bytes += static_cast<double>(tensor::bytes_of(n.out[0]));
  cost.flop = static_cast<double>(n.in[dy].shape.elements().value_or(0));
  for (int64_t k : n.attrs.get_ints("kernel_shape")) cost.flop *= static_cast<double>(k);
  return cost;
}

/// Expands to plain nodes; if x is the result of a ReLU, the gradient of the ReLU follows.
std::vector<ir::ValueId> expand_max_grad(ir::Graph& graph, const ir::Node& node) {
  ir::Node plain = node;
  plain.attrs.erase("rectified");
  std::vector<ir::ValueId> dx = expand_to("max_pool_grad")(graph, plain);
  if (node.attrs.get_int("rectified", 0) != 0)
    dx[0] = graph.add1(table().need("relu_grad"), {dx[0], node.in[0]}, {}, node.from);
  return dx;
}

}  // namespace

ir::OpSchema max_pool_nhwc_schema() {
  return {.name = "max_pool_nhwc",
          .doc = "largest value of each window, x [n,h,w,c] -> [n,oh,ow,c]",
          .moves = 0b1,
          .cut = pool_nhwc_cut,
          .attrs = window_attrs(),
          .infer = infer_window,
          .expand = expand_to("max_pool"),
          .cost = window_cost,
          .grad = rule(max_pool_nhwc_gradients)};
}

ir::OpSchema average_pool_nhwc_schema() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  attrs.push_back({"count_include_pad", "int", "padding counts in the divisor"});
  return {.name = "average_pool_nhwc",
          .doc = "mean of each window, x [n,h,w,c] -> [n,oh,ow,c]",
          .precision = kSumsMany,
          .cut = linear_pool_nhwc_cut,
          .attrs = std::move(attrs),
          .infer = infer_window,
          .expand = expand_to("average_pool"),
          .cost = window_cost,
          .grad = rule(average_pool_nhwc_gradients)};
}

ir::OpSchema max_pool_nhwc_grad_schema() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  attrs.push_back({"rectified", "int", "1: x is the result of a relu, whose gradient is taken too"});
  return {.name = "max_pool_nhwc_grad",
          .doc = "gradient of max_pool_nhwc: dy of each window goes to its first maximum; x, dy -> dx like x",
          .cut = max_pool_nhwc_grad_cut,
          .min_in = 2,
          .max_in = 2,
          .attrs = std::move(attrs),
          .infer = [](const ir::NodeView& n) { return std::vector<tensor::TensorType>{n.in[0]}; },
          .expand = expand_max_grad,
          .cost = [](const ir::NodeView& n) { return grad_cost(n, 1); },
          .why_no_grad = "a gradient itself: second derivatives are not taken"};
}

ir::OpSchema average_pool_nhwc_grad_schema() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  attrs.push_back({"count_include_pad", "int", "padding counts in the divisor"});
  attrs.push_back({"in_shape", "ints", "height and width of x"});
  return {.name = "average_pool_nhwc_grad",
          .doc = "gradient of average_pool_nhwc: every window spreads its share of dy; dy -> dx [n,h,w,c]",
          .cut = linear_pool_nhwc_cut,
          .attrs = std::move(attrs),
          .infer =
              [](const ir::NodeView& n) {
                const std::vector<int64_t> in = n.attrs.get_ints("in_shape");
                base::require(in.size() == 2 && n.in[0].shape.rank() == 4, "average_pool_nhwc_grad of ",
                              n.in[0].shape.to_string());
                return std::vector<tensor::TensorType>{
                    {n.in[0].dtype, Shape({n.in[0].shape[0], Dim(in[0]), Dim(in[1]), n.in[0].shape[3]})}};
              },
          .expand = expand_to("average_pool_grad"),
          .cost = [](const ir::NodeView& n) { return grad_cost(n, 0); },
          .why_no_grad = "a gradient itself: second derivatives are not taken"};
}

ir::OpSchema global_average_pool_nhwc_schema() {
  return {.name = "global_average_pool_nhwc",
          .doc = "mean over height and width, x [n,h,w,c] -> [n,1,1,c]",
          .precision = kSumsMany,
          .half_rows = {.operands = 0b1},
          .cut = linear_pool_nhwc_cut,
          .infer = infer_global_nhwc,
          .expand = expand_to("global_average_pool"),
          .cost =
              [](const ir::NodeView& n) {
                return ir::Cost{
                    .flop = static_cast<double>(n.in[0].shape.elements().value_or(0)),
                    .bytes = static_cast<double>(tensor::bytes_of(n.in[0]) + tensor::bytes_of(n.out[0]))};
              },
          .grad = rule(global_average_pool_gradients)};
}

}  // namespace trireme::ops
