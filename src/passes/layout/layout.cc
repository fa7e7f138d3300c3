// Channels-last networks: which ops change layout; convolutions absorb the first layout change.
#include "passes/layout/layout.h"

#include <algorithm>
#include <array>

#include "ops/conv/window.h"
#include "ops/pool/channels_last.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::Dims;

/// The number of spatial axes of f32 activations [n, c, spatial...] with known extents; 0 for other values.
size_t spatial_axes(const Rewriter& rw, ValueId id) {
  const auto dims = rw.dims(id);
  if (!dims || tensor::element_count(*dims) == 0 || rw.graph().type(id).dtype != tensor::DType::f32) return 0;
  return dims->size() >= 3 && dims->size() <= 5 ? dims->size() - 2 : 0;
}

/// With up to this many channels a convolution copies its input anyway, line by line, so that a row of taps
/// is contiguous. For more channels a separate transpose is faster.
constexpr int64_t kGatheredChannels = 15;

ValueId to_last(Rewriter& rw, ValueId x, const std::string& from) {
  return rw.add("transpose", {x}, {{"perm", ops::channels_last(rw.dims(x)->size())}}, from);
}

void replace_by_channels_first(Rewriter& rw, const Node& node, ValueId y) {
  const ir::Attrs perm{{"perm", ops::channels_first(rw.dims(y)->size())}};
  rw.replace(node.out[0], rw.add("transpose", {y}, perm, node.from));
}

bool convert_conv(Rewriter& rw, const Node& node) {
  const auto w = rw.dims(node.in[1]);
  const bool has_bias = node.in.size() > 2 && node.in[2] != ir::kNoValue;
  const size_t axes = spatial_axes(rw, node.in[0]);
  if (axes == 0 || !w || w->size() != axes + 2) return false;
  std::vector<ValueId> in{to_last(rw, node.in[0], node.from), node.in[1]};
  if (has_bias) in.push_back(node.in[2]);
  replace_by_channels_first(rw, node, rw.add("conv_nhwc", std::move(in), node.attrs, node.from));
  return true;
}

/// The end padding with which the last window is complete, so that rounding up needs no cut-off window.
int64_t whole_pad_end(const ops::WindowAxis& a) {
  return std::max(a.pad_end, (a.out - 1) * a.stride + a.reach() - a.in - a.pad_begin);
}

/// Two axes of the windows of `node` as a channels-last pool of the same kind over images x [n,h,w,c].
ValueId pool_images(Rewriter& rw, const Node& node, ValueId x, const ops::WindowAxis& h,
                    const ops::WindowAxis& w) {
  using Ints = std::vector<int64_t>;
  if (h.kernel == 1 && w.kernel == 1 && h.out == h.in && w.out == w.in) return x;
  ir::Attrs attrs{{"kernel_shape", Ints{h.kernel, w.kernel}},
                  {"strides", Ints{h.stride, w.stride}},
                  {"dilations", Ints{h.dilation, w.dilation}},
                  {"pads", Ints{h.pad_begin, w.pad_begin, whole_pad_end(h), whole_pad_end(w)}}};
  if (const int64_t counted = node.attrs.get_int("count_include_pad", 0))
    attrs.set("count_include_pad", counted);
  return rw.add(ops::channels_last_form(node.op_name()), {x}, std::move(attrs), node.from);
}

/// Pools over lines are pools over images of height 1. Pools over blocks become a pool over planes followed
/// by one along the depth: a window is a product of intervals, and so are the elements that it counts.
bool convert_pool(Rewriter& rw, const Node& node) {
  const Dims x = *rw.dims(node.in[0]);
  const size_t axes = x.size() - 2;
  const bool averages = node.op_name() == "average_pool";
  const ops::Window window =
      ops::make_window(node.attrs, node.attrs.get_ints("kernel_shape"), {x.begin() + 2, x.end()});
  const auto &d = window[0], &h = window[1], &w = window[2];
  for (const ops::WindowAxis& a : window.axes) {
    if (averages && (a.dilation != 1 || whole_pad_end(a) != a.pad_end)) return false;
    if (axes != 2 && std::min(a.pad_begin, a.pad_end) < 0) return false;
  }
  ValueId y = to_last(rw, node.in[0], node.from);
  if (axes == 2) {
    ir::Attrs attrs = node.attrs;
    attrs.erase("storage_order");
    if (averages) attrs.erase("ceil_mode");
    y = rw.add(ops::channels_last_form(node.op_name()), {y}, std::move(attrs), node.from);
  } else {
    y = pool_images(rw, node, rw.reshaped(y, {x[0] * d.in, h.in, w.in, x[1]}, node.from), h, w);
    if (axes == 3)
      y = pool_images(rw, node, rw.reshaped(y, {x[0], d.in, h.out * w.out, x[1]}, node.from), d,
                      {.in = h.out * w.out, .out = h.out * w.out});
    Dims to{x[0], d.out, h.out, w.out, x[1]};
    to.erase(to.begin() + 1, to.begin() + 1 + static_cast<int64_t>(3 - axes));
    y = rw.reshaped(y, to, node.from);
  }
  replace_by_channels_first(rw, node, y);
  return true;
}

bool convert_global_pool(Rewriter& rw, const Node& node) {
  const Dims x = *rw.dims(node.in[0]);
  Dims to(x.size(), 1);
  to.front() = x[0], to.back() = x[1];
  const int64_t lines = tensor::element_count(x) / (x[0] * x[1] * x.back());
  const ValueId images =
      rw.reshaped(to_last(rw, node.in[0], node.from), {x[0], lines, x.back(), x[1]}, node.from);
  replace_by_channels_first(
      rw, node, rw.reshaped(rw.add("global_average_pool_nhwc", {images}, {}, node.from), to, node.from));
  return true;
}

}  // namespace

size_t use_channels_last(ir::Graph& graph) {
  Rewriter rw(graph);
  std::array<bool, 4> has_conv{};  // by the number of spatial axes
  size_t changes = rw.for_each("conv", [&](ir::NodeId, const Node& node) {
    const size_t axes = spatial_axes(rw, node.in[0]);
    const bool converted = convert_conv(rw, node);
    has_conv[axes] |= converted;
    return converted;
  });
  changes += rw.for_each([&](ir::NodeId, const Node& node) {
    if (ops::channels_last_form(node.op_name()).empty()) return false;
    const bool whole = node.op_name() == "global_average_pool";
    const size_t axes = spatial_axes(rw, node.in[0]);
    // Lines and blocks keep their layout in networks without convolutions over them.
    if (axes == 0 || node.out.size() > 1 || (axes != 2 && !has_conv[axes])) return false;
    return whole ? convert_global_pool(rw, node) : convert_pool(rw, node);
  });
  return changes;
}

size_t absorb_input_layout(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("conv_nhwc", [&](ir::NodeId, const Node& node) {
    const auto change = rw.producer(node.in[0], "transpose");
    const bool grouped = node.attrs.get_int("group", 1) != 1;
    const auto image = rw.dims(node.in[0]);
    if (!change || grouped || !rw.single_use(node.in[0]) || !image || image->back() > kGatheredChannels)
      return false;
    const std::vector<int64_t> perm = change->attrs.get_ints("perm");
    if (perm.size() > 4 || perm != ops::channels_last(perm.size())) return false;
    Node fused = node;
    fused.in[0] = change->in[0];
    fused.attrs.set("input_layout", std::string("nchw"));
    rw.replace(node.out[0], rw.add("conv_nhwc", fused.in, fused.attrs, node.from));
    return true;
  });
}

}  // namespace trireme::passes
