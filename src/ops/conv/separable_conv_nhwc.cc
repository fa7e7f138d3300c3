// separable_conv_nhwc: a pointwise, a depthwise and another pointwise convolution as one node.
#include "ops/conv/separable_conv.h"
#include "ops/cut_notation.h"
#include "ops/conv/window.h"
#include "ops/grad.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Shape;

constexpr const char* kActivationNames[] = {"activation", "lo", "hi", "alpha", "beta"};

/// The number of channels between the pointwise convolutions is the first extent of the depthwise weights.
std::vector<tensor::TensorType> infer_separable(const ir::NodeView& n) {
  const Shape &x = n.in[kSeparableX].shape, &w = n.in[kSeparableDepthwise].shape;
  const Shape& project = n.in[kSeparableProject].shape;
  base::require(x.rank() == 4 && w.rank() == 4 && project.rank() == 4,
                "separable_conv_nhwc takes x and weights of rank 4, got ", x.to_string(), ", ", w.to_string(),
                ", ", project.to_string());
  base::require(!n.present(kSeparableExpand) || n.in[kSeparableExpand].shape.rank() == 4,
                "separable_conv_nhwc expands by weights of rank 4, got ",
                n.present(kSeparableExpand) ? n.in[kSeparableExpand].shape.to_string() : "none");
  const Dim channels = n.present(kSeparableExpand) ? n.in[kSeparableExpand].shape[0] : x[3];
  base::require(channels == w[0] && channels == project[1], "separable_conv_nhwc: ", channels.to_string(),
                " channels, weights ", w.to_string(), " and ", project.to_string());
  const std::vector<Dim> out = window_out(n.attrs, {w[2].value(), w[3].value()}, {x[1], x[2]});
  return {{n.in[kSeparableX].dtype, Shape({x[0], out[0], out[1], project[0]})}};
}

ir::Cost separable_cost(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(kSeparableX), w = n.in_dims(kSeparableDepthwise), y = n.out_dims(0);
  const double c = static_cast<double>(w[0]), pixels = static_cast<double>(y[0] * y[1] * y[2]);
  ir::Cost cost;
  cost.flop = 2 * pixels * c * static_cast<double>(w[2] * w[3] + y[3]);
  if (n.present(kSeparableExpand)) cost.flop += 2 * static_cast<double>(tensor::element_count(x)) * c;
  for (size_t i = 0; i < n.in.size(); ++i) {
    if (n.present(i)) cost.bytes += static_cast<double>(tensor::element_count(n.in_dims(i)) * 4);
  }
  cost.bytes += static_cast<double>(tensor::element_count(y) * 4);
  return cost;
}

std::vector<ir::ValueId> expand_separable(ir::Graph& graph, const ir::Node& node) {
  const ir::OpDef& conv = table().need("conv_nhwc");
  const auto operand = [&](size_t i) { return i < node.in.size() ? node.in[i] : ir::kNoValue; };
  ir::ValueId middle = operand(kSeparableX);
  if (operand(kSeparableExpand) != ir::kNoValue) {
    middle = graph.add1(conv, {middle, operand(kSeparableExpand), operand(kSeparableExpandBias)},
                        stage_activation(node.attrs, "expand_"), node.from);
  }
  ir::Attrs window = stage_activation(node.attrs, "depthwise_");
  for (const char* name : {"kernel_shape", "strides", "dilations", "pads", "auto_pad"}) {
    if (const auto* value = node.attrs.find(name)) window.set(name, *value);
  }
  const tensor::Shape& weights = graph.type(operand(kSeparableDepthwise)).shape;
  window.set("group", weights[0].value());
  middle = graph.add1(conv, {middle, operand(kSeparableDepthwise), operand(kSeparableDepthwiseBias)}, window,
                      node.from);
  ir::Attrs last = stage_activation(node.attrs, "");
  if (const int64_t before = node.attrs.get_int("act_before_residual", 0))
    last.set("act_before_residual", before);
  return {graph.add1(
      conv, {middle, operand(kSeparableProject), operand(kSeparableProjectBias), operand(kSeparableResidual)},
      last, node.from)};
}

/// This operator is made after a model was cut for its ranks, so channels stay whole.
ir::CutRule separable_cut(const ir::NodeView& n) {
  CutNotation notation(n);
  notation.in(kSeparableX, "n...").out(0, "n...");
  if (n.in.size() > kSeparableResidual) notation.in(kSeparableResidual, "n...");
  return {.notation = notation.text()};
}

}  // namespace

ir::Attrs stage_activation(const ir::Attrs& attrs, const std::string& prefix) {
  ir::Attrs stage;
  for (const char* name : kActivationNames) {
    if (const auto* value = attrs.find(prefix + name)) stage.set(name, *value);
  }
  return stage;
}

void set_stage_activation(ir::Attrs& attrs, const std::string& prefix, const ir::Attrs& stage) {
  for (const char* name : kActivationNames) {
    if (const auto* value = stage.find(name)) attrs.set(prefix + name, *value);
  }
}

ir::OpSchema separable_conv_nhwc_schema() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  for (const ir::AttrSpec& a : activation_attrs()) attrs.push_back(a);
  for (const char* stage : {"expand_", "depthwise_"}) {
    for (const ir::AttrSpec& a : activation_attrs()) {
      if (a.name != "act_before_residual") attrs.push_back({stage + a.name, a.kind, a.doc});
    }
  }
  return {
      .name = "separable_conv_nhwc",
      .doc =
          "y = activation(project * depthwise(expand * x) + residual), each stage with bias and activation; "
          "x "
          "[n,h,w,in], depthwise weights [c,1,kh,kw], project [out,c,1,1], expand [c,in,1,1] or absent, y "
          "[n,oh,ow,out]",
      .cut = separable_cut,
      .min_in = 3,
      .max_in = kSeparableOperands,
      .attrs = std::move(attrs),
      .infer = infer_separable,
      .expand = expand_separable,
      .cost = separable_cost,
      .grad = grad_by_expand()};
}

}  // namespace trireme::ops
