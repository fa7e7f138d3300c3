// The gradients of conv_nhwc towards x and towards the weights, and the rule that uses them.
#include <numeric>

#include "ops/conv/conv_cuts.h"
#include "ops/conv/conv_grad.h"
#include "ops/dense/activation.h"
#include "ops/table.h"

namespace trireme::ops {

using tensor::Dim;
using tensor::Dims;
using tensor::Shape;

namespace {

std::vector<ir::AttrSpec> grad_attrs(std::vector<ir::AttrSpec> more) {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  attrs.push_back({"group", "int", "channels fall into this many independent groups"});
  attrs.insert(attrs.end(), more.begin(), more.end());
  return attrs;
}

std::vector<tensor::TensorType> infer_x(const ir::NodeView& n) {
  const std::vector<int64_t> in = n.attrs.get_ints("in_shape");
  const Shape &dy = n.in[0].shape, &w = n.in[1].shape;
  const size_t rank = dy.rank();
  base::require(rank >= 3 && rank <= 5 && w.rank() == rank && in.size() == rank - 2, "conv_nhwc_grad_x of ",
                dy.to_string(), " and ", w.to_string());
  std::vector<Dim> dx(in.begin(), in.end());
  dx.insert(dx.begin(), dy[0]);
  dx.push_back(Dim(w[1].value() * n.attrs.get_int("group", 1)));
  return {{n.in[0].dtype, Shape(std::move(dx))}};
}

std::vector<tensor::TensorType> infer_w(const ir::NodeView& n) {
  const std::vector<int64_t> kernel = n.attrs.get_ints("kernel_shape");
  const Shape &x = n.in[0].shape, &dy = n.in[1].shape;
  const int64_t group = n.attrs.get_int("group", 1);
  const size_t rank = x.rank();
  base::require(rank >= 3 && rank <= 5 && dy.rank() == rank && kernel.size() == rank - 2,
                "conv_nhwc_grad_w of ", x.to_string(), " and ", dy.to_string());
  const int64_t channels = x[conv_reads_nchw(n.attrs) ? 1 : rank - 1].value();
  base::require(group >= 1 && channels % group == 0, "conv_nhwc_grad_w: ", channels, " channels in ", group,
                " groups");
  std::vector<Dim> dw{dy[rank - 1], Dim(channels / group)};
  dw.insert(dw.end(), kernel.begin(), kernel.end());
  return {{n.in[0].dtype, Shape(std::move(dw))}, {n.in[0].dtype, Shape({dy[rank - 1]})}};
}

ValueId transposed(ir::Graph& graph, ValueId x, const std::vector<int64_t>& perm, const std::string& from) {
  return graph.add1(table().need("transpose"), {x}, {{"perm", perm}}, from);
}

std::vector<ValueId> expand_x(ir::Graph& graph, const ir::Node& node) {
  const Dims w = graph.type(node.in[1]).shape.to_dims();
  const Window window = make_window(node.attrs, {w.begin() + 2, w.end()}, node.attrs.get_ints("in_shape"));
  const ValueId dy = transposed(graph, node.in[0], channels_first(w.size()), node.from);
  const ir::Attrs attrs =
      explicit_window(window, w.size() - 2, node.attrs.get_int("group", 1), /*exact=*/true);
  const ValueId dx = graph.add1(table().need("conv_transpose"), {dy, node.in[1]}, attrs, node.from);
  return {transposed(graph, dx, channels_last(w.size()), node.from)};
}

std::vector<ValueId> expand_w(ir::Graph& graph, const ir::Node& node) {
  ir::Attrs attrs = node.attrs;
  attrs.erase("input_layout");
  const std::vector<int64_t> to_first = channels_first(graph.type(node.in[1]).shape.rank());
  const ValueId x =
      conv_reads_nchw(node.attrs) ? node.in[0] : transposed(graph, node.in[0], to_first, node.from);
  const ValueId dy = transposed(graph, node.in[1], to_first, node.from);
  std::vector<ValueId> out{graph.add1(table().need("conv_grad_w"), {x, dy}, attrs, node.from)};
  if (node.out.size() > 1) {
    std::vector<int64_t> axes{0};
    for (size_t i = 2; i < to_first.size(); ++i) axes.push_back(static_cast<int64_t>(i));
    const ValueId pixels = graph.add_constant(
        tensor::Tensor::from<int64_t>({static_cast<int64_t>(axes.size())}, std::span<const int64_t>(axes)));
    out.push_back(
        graph.add1(table().need("reduce_sum"), {dy, pixels}, {{"keepdims", int64_t{0}}}, node.from));
  }
  return out;
}

/// Gradients if only bias and residual follow the sum; dy is the gradient of that sum.
Gradients linear_gradients(GradBuilder& g, ValueId dy) {
  const bool nchw = conv_reads_nchw(g.attrs());
  const Dims x = g.dims(g.in(0)), w = g.dims(g.in(1));
  const Dims spatial = nchw ? Dims(x.begin() + 2, x.end()) : Dims(x.begin() + 1, x.end() - 1);
  const Dims kernel(w.begin() + 2, w.end());
  const Window window = make_window(g.attrs(), kernel, spatial);
  const ir::Attrs attrs =
      explicit_window(window, kernel.size(), g.attrs().get_int("group", 1), /*exact=*/false);
  Gradients out = g.none();
  ir::Attrs to_x = attrs;
  to_x.set("in_shape", std::vector<int64_t>(spatial.begin(), spatial.end()));
  const ValueId dx = g.op("conv_nhwc_grad_x", {dy, g.in(1)}, to_x);
  out[0] = nchw ? g.transpose(dx, channels_first(x.size())) : dx;
  ir::Attrs to_w = attrs;
  to_w.set("kernel_shape", kernel);
  if (nchw) to_w.set("input_layout", std::string("nchw"));
  out[1] = g.op("conv_nhwc_grad_w", {g.in(0), dy}, to_w);
  if (!g.has(2)) return out;
  std::vector<int64_t> all_but_channels(x.size() - 1);
  std::iota(all_but_channels.begin(), all_but_channels.end(), 0);
  out[2] = g.reduce_sum(dy, all_but_channels, false);
  return out;
}

/// Recomputes the sum before the activation, then differentiates the plain nodes of the activation.
Gradients recomputed_gradients(GradBuilder& g, const ActivationSpec& activation) {
  ir::Attrs plain = g.attrs();
  for (const ir::AttrSpec& a : activation_attrs()) plain.erase(a.name);
  std::vector<ValueId> operands{g.in(0), g.in(1)};
  if (g.has(2)) operands.push_back(g.in(2));
  const ValueId sum = g.op("conv_nhwc", operands, plain);
  ir::Graph& graph = g.graph();
  const size_t first = graph.nodes().size();
  const ValueId y = expand_finish(graph, sum, g.in(3), activation);
  std::vector<char> wanted(graph.values().size(), 0);
  wanted[index(sum)] = 1;
  if (g.has(3)) wanted[index(g.in(3))] = 1;
  std::vector<ValueId> grads(graph.values().size(), ir::kNoValue);
  grads[index(y)] = g.grad();
  backpropagate(graph, first, wanted, grads);
  Gradients out = linear_gradients(g, grads[index(sum)]);
  if (g.has(3)) out[3] = grads[index(g.in(3))];
  return out;
}

}  // namespace

Gradients conv_nhwc_gradients(GradBuilder& g) {
  const ActivationSpec activation = activation_of(g.attrs());
  const bool none = activation.kind == ActivationKind::none;
  const bool relu = activation.kind == ActivationKind::relu && !(g.has(3) && activation.before_residual);
  if (!none && !relu) return recomputed_gradients(g, activation);
  ValueId dy = g.grad();
  if (relu) {
    // The sum was above zero exactly where the result is.
    const ValueId passes = g.op("greater", {g.out(), g.scalar(0, g.out())});
    dy = g.op("where", {passes, dy, g.scalar(0, dy)});
  }
  Gradients out = linear_gradients(g, dy);
  if (g.has(3)) out[3] = dy;
  return out;
}

ir::OpSchema conv_nhwc_grad_x_schema() {
  return {.name = "conv_nhwc_grad_x",
          .doc = "gradient of conv_nhwc towards x; dy [n,oh,ow,oc], w [oc,c/group,kh,kw] -> dx [n,h,w,c]",
          .cut = conv_nhwc_grad_x_cut,
          .localise = localise_conv,
          .min_in = 2,
          .max_in = 2,
          .attrs = grad_attrs({{"in_shape", "ints", "spatial extents of x"}}),
          .infer = infer_x,
          .expand = expand_x,
          .cost =
              [](const ir::NodeView& n) {
                const Dims w = n.in_dims(1);
                return conv_grad_cost(
                    n, static_cast<double>(tensor::element_count(w) / std::max<int64_t>(w[0], 1)), 0);
              },
          .why_no_grad = "a gradient itself: second derivatives are not taken"};
}

ir::OpSchema conv_nhwc_grad_w_schema() {
  return {.name = "conv_nhwc_grad_w",
          .doc =
              "gradients of conv_nhwc towards w and bias; x [n,h,w,c], dy [n,oh,ow,oc] -> dw "
              "[oc,c/group,kh,kw], db [oc]",
          .cut = conv_nhwc_grad_w_cut,
          .localise = localise_conv_grad_w,
          .min_in = 2,
          .max_in = 2,
          .max_out = 2,
          .attrs = grad_attrs({{"input_layout", "string", "of x: nhwc, or nchw"}}),
          .infer = infer_w,
          .expand = expand_w,
          .cost =
              [](const ir::NodeView& n) {
                const Dims w = n.out_dims(0);
                return conv_grad_cost(
                    n, static_cast<double>(tensor::element_count(w) / std::max<int64_t>(w[0], 1)), 1);
              },
          .why_no_grad = "a gradient itself: second derivatives are not taken"};
}

}  // namespace trireme::ops
