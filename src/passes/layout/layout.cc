// Channels-last networks: which ops change layout, and how a convolution absorbs the first change.
#include "passes/layout/layout.h"

#include "ops/conv/window.h"
#include "ops/pool/channels_last.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// Spatial axes of f32 activations [n, c, spatial...] of known extents; 0 for anything else.
size_t spatial_axes(const Rewriter& rw, ValueId id) {
  const auto dims = rw.dims(id);
  if (!dims || tensor::element_count(*dims) == 0 || rw.graph().type(id).dtype != tensor::DType::f32) return 0;
  return dims->size() >= 3 && dims->size() <= 5 ? dims->size() - 2 : 0;
}

/// Up to so many channels a convolution copies its input anyway, line by line, so that a row of taps is one
/// run of memory; wider inputs are transposed faster by a step of their own.
constexpr int64_t kGatheredChannels = 15;

ValueId to_last(Rewriter& rw, ValueId x, const std::string& from) {
  return rw.add("transpose", {x}, {{"perm", ops::channels_last(rw.dims(x)->size())}}, from);
}

void finish(Rewriter& rw, const Node& node, ValueId y) {
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
  finish(rw, node, rw.add("conv_nhwc", std::move(in), node.attrs, node.from));
  return true;
}

bool convert_pool(Rewriter& rw, const Node& node) {
  if (spatial_axes(rw, node.in[0]) != 2 || node.out.size() > 1) return false;
  if (node.attrs.get_int("ceil_mode", 0) != 0 && node.op_name() == "average_pool") return false;
  for (int64_t d : node.attrs.get_ints("dilations")) {
    if (d != 1 && node.op_name() == "average_pool") return false;
  }
  const ValueId x = to_last(rw, node.in[0], node.from);
  ir::Attrs attrs = node.attrs;
  attrs.erase("storage_order");
  const std::string_view form = ops::channels_last_form(node.op_name());
  finish(rw, node, rw.add(form, {x}, std::move(attrs), node.from));
  return true;
}

}  // namespace

size_t use_channels_last(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) {
    if (node.op_name() == "conv") return convert_conv(rw, node);
    return !ops::channels_last_form(node.op_name()).empty() && convert_pool(rw, node);
  });
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
