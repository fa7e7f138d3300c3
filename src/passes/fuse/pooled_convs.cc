// Finds the six nodes around the image between a convolution and a max pool; makes two of them.
#include "passes/fuse/pooled_convs.h"

#include <algorithm>

#include "ops/conv/window.h"
#include "ops/table.h"
#include "passes/cpu_kernels.h"
#include "passes/fuse/conv_bias_sums.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// The nodes around one convolution. Readers of the image's gradient may be missing.
struct Place {
  Node conv, pool;                      // y = conv(x, w, b), p = pool(y)
  std::optional<Node> to_x, to_w, sum;  // read the gradient of y
  std::optional<Node> rectifier;        // the ReLU gradient after to_x
};

/// Windows of 2 x 2 with stride 2 and without padding.
bool is_two_by_two(const Node& pool, const tensor::Dims& y) {
  const ops::Window w = ops::make_window(pool.attrs, pool.attrs.get_ints("kernel_shape"), {y[1], y[2]});
  return std::all_of(w.axes.begin() + 1, w.axes.end(), [](const ops::WindowAxis& a) {
    return a.kernel == 2 && a.stride == 2 && a.dilation == 1 && a.pad_begin == 0 && a.out == a.in / 2;
  });
}

/// A convolution with only a bias, and a ReLU if the pool's gradient includes one.
bool is_plain_conv(const Node& conv, bool rectified) {
  const bool has_residual = conv.in.size() > 3 && conv.in[3] != ir::kNoValue;
  return !has_residual && conv.attrs.get_int("group", 1) == 1 &&
         conv.attrs.get_string("input_layout", "nhwc") == "nhwc" &&
         conv.attrs.get_string("activation", "none") == (rectified ? "relu" : "none");
}

/// Takes the readers of the image's gradient into `place`; false if there are others.
bool take_readers(const Rewriter& rw, ValueId dy, Place& place) {
  size_t found = 0;
  const auto take = [&](std::optional<Node>& to, const Node& node) {
    if (to.has_value()) return;
    to = node;
    ++found;
  };
  for (const Node& node : rw.graph().nodes()) {
    if (node.op == nullptr || std::find(node.in.begin(), node.in.end(), dy) == node.in.end()) continue;
    const std::string_view op = node.op_name();
    if (op == "conv_nhwc_grad_x" && node.in[0] == dy && node.in[1] == place.conv.in[1])
      take(place.to_x, node);
    if (op == "conv_nhwc_grad_w" && node.in[1] == dy && node.in[0] == place.conv.in[0])
      take(place.to_w, node);
    if (op == "reduce_sum" && sums_all_pixels(rw, node)) take(place.sum, node);
  }
  return found == rw.uses(dy) && place.to_w.has_value();
}

std::optional<Place> find(const Rewriter& rw, const Node& back) {
  const std::optional<Node> conv = rw.producer(back.in[0], "conv_nhwc");
  const auto y = rw.dims(back.in[0]);
  const bool rectified = back.attrs.get_int("rectified", 0) != 0;
  if (!conv || !y || rw.uses(back.in[0]) != 2 || !is_plain_conv(*conv, rectified) || !is_two_by_two(back, *y))
    return std::nullopt;
  Place place{.conv = *conv, .pool = {}, .to_x = {}, .to_w = {}, .sum = {}, .rectifier = {}};
  for (const Node& node : rw.graph().nodes()) {
    if (node.op_name() == "max_pool_nhwc" && node.in[0] == back.in[0] && is_two_by_two(node, *y))
      place.pool = node;
  }
  if (place.pool.op == nullptr || !take_readers(rw, back.out[0], place)) return std::nullopt;
  if (!place.to_x || !rw.single_use(place.to_x->out[0])) return place;
  for (const Node& node : rw.graph().nodes()) {
    const bool follows = node.op_name() == "relu_grad" && node.in[0] == place.to_x->out[0];
    if (follows && node.in[1] == place.conv.in[0]) place.rectifier = node;
  }
  return place;
}

Node node_of(const char* op, const Node& like, std::vector<ValueId> in) {
  Node node = like;
  node.op = &ops::table().need(op);
  node.in = std::move(in);
  node.attrs.erase("group");
  return node;
}

bool fuse(Rewriter& rw, const Node& back) {
  const std::optional<Place> found = find(rw, back);
  if (!found) return false;
  const Place& at = *found;
  const ValueId x = at.conv.in[0], w = at.conv.in[1], dp = back.in[1];
  std::vector<ValueId> operands = at.conv.in;
  while (operands.back() == ir::kNoValue) operands.pop_back();
  const Node conv = node_of("conv_pool_nhwc", at.conv, operands);
  Node grad = node_of("conv_pool_nhwc_grad", *at.to_w, {x, dp, ir::kNoValue, w});
  if (at.rectifier) grad.attrs.set("rectified", int64_t{1});
  const tensor::TensorType which{tensor::DType::u8, rw.graph().type(dp).shape};
  if (!has_cpu_kernel(rw.graph(), conv, 2) || !has_cpu_kernel(rw.graph(), grad, 3, {which})) return false;
  const std::vector<ValueId> pooled = rw.add_all("conv_pool_nhwc", conv, 2);
  grad.in[2] = pooled[1];
  const std::vector<ValueId> grads = rw.add_all("conv_pool_nhwc_grad", grad, 3);
  rw.replace(at.pool.out[0], pooled[0]);
  if (at.to_x) rw.replace(at.rectifier ? at.rectifier->out[0] : at.to_x->out[0], grads[0]);
  rw.replace(at.to_w->out[0], grads[1]);
  if (at.sum) rw.replace(at.sum->out[0], grads[2]);
  return true;
}

}  // namespace

size_t fuse_pooled_convs(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("max_pool_nhwc_grad", [&](ir::NodeId, const Node& back) { return fuse(rw, back); });
}

}  // namespace trireme::passes
