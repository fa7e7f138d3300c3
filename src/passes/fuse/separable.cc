// Fuses pointwise, depthwise and pointwise convolutions into one node that works within the cache.
#include "ops/conv/separable_conv.h"
#include "passes/fuse/separable.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

bool all_equal(const Node& node, const char* name, int64_t value) {
  const auto list = node.attrs.get_ints(name);
  return std::all_of(list.begin(), list.end(), [&](int64_t v) { return v == value; });
}

/// The f32 weights of a 2-D convolution if they are constant, else null.
const tensor::Tensor* image_weights(const Rewriter& rw, const Node& node) {
  const tensor::Tensor* w = rw.known(node.in[1]);
  return w != nullptr && w->dtype() == tensor::DType::f32 && w->dims().size() == 4 ? w : nullptr;
}

/// A channels-last 1 x 1 convolution without strides, padding or groups.
bool is_pointwise(const Rewriter& rw, const Node& node) {
  const tensor::Tensor* w = image_weights(rw, node);
  if (w == nullptr || node.attrs.get_int("group", 1) != 1) return false;
  return w->dims()[2] == 1 && w->dims()[3] == 1 && all_equal(node, "strides", 1) &&
         all_equal(node, "pads", 0) && node.attrs.get_string("input_layout", "nhwc") == "nhwc";
}

/// One filter per channel, without dilation.
bool is_depthwise(const Rewriter& rw, const Node& node) {
  const tensor::Tensor* w = image_weights(rw, node);
  if (w == nullptr || node.has_operand(3)) return false;
  return w->dims()[1] == 1 && w->dims()[0] == node.attrs.get_int("group", 1) && w->dims()[0] > 1 &&
         all_equal(node, "dilations", 1) && node.attrs.get_string("input_layout", "nhwc") == "nhwc" &&
         rw.dims(node.out[0]).has_value();
}

bool gather(Rewriter& rw, const Node& project) {
  if (!is_pointwise(rw, project) || !rw.single_use(project.in[0])) return false;
  const auto depthwise = rw.producer(project.in[0], "conv_nhwc");
  if (!depthwise || !is_depthwise(rw, *depthwise)) return false;
  std::vector<ValueId> in(ops::kSeparableOperands, ir::kNoValue);
  ir::Attrs attrs;
  for (const char* name : {"strides", "pads", "auto_pad", "kernel_shape"}) {
    if (const auto* value = depthwise->attrs.find(name)) attrs.set(name, *value);
  }
  in[ops::kSeparableX] = depthwise->in[0];
  in[ops::kSeparableDepthwise] = depthwise->in[1];
  in[ops::kSeparableDepthwiseBias] = depthwise->operand(2);
  ops::set_stage_activation(attrs, "depthwise_", depthwise->attrs);
  in[ops::kSeparableProject] = project.in[1];
  in[ops::kSeparableProjectBias] = project.operand(2);
  in[ops::kSeparableResidual] = project.operand(3);
  ops::set_stage_activation(attrs, "", project.attrs);
  if (const int64_t before = project.attrs.get_int("act_before_residual", 0))
    attrs.set("act_before_residual", before);
  const auto expand = rw.producer(depthwise->in[0], "conv_nhwc");
  if (expand && rw.single_use(depthwise->in[0]) && is_pointwise(rw, *expand) && !expand->has_operand(3)) {
    in[ops::kSeparableX] = expand->in[0];
    in[ops::kSeparableExpand] = expand->in[1];
    in[ops::kSeparableExpandBias] = expand->operand(2);
    ops::set_stage_activation(attrs, "expand_", expand->attrs);
  }
  while (in.back() == ir::kNoValue) in.pop_back();
  rw.replace(project.out[0], rw.add("separable_conv_nhwc", std::move(in), std::move(attrs), project.from));
  return true;
}

}  // namespace

size_t gather_separable(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("conv_nhwc", [&](ir::NodeId, const Node& node) { return gather(rw, node); });
}

}  // namespace trireme::passes
