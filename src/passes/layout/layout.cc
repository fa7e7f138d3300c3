// Channels-last networks: which ops change layout, and how a convolution absorbs the first change.
#include "passes/layout/layout.h"

#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

const std::vector<int64_t> kToLast{0, 2, 3, 1};
const std::vector<int64_t> kToFirst{0, 3, 1, 2};

bool is_image(const Rewriter& rw, ValueId id, tensor::DType dtype) {
  const auto dims = rw.dims(id);
  return dims && dims->size() == 4 && tensor::element_count(*dims) > 0 && rw.graph().type(id).dtype == dtype;
}

ValueId to_last(Rewriter& rw, ValueId x, const std::string& from) {
  return rw.add("transpose", {x}, {{"perm", kToLast}}, from);
}

void finish(Rewriter& rw, const Node& node, ValueId y) {
  rw.replace(node.out[0], rw.add("transpose", {y}, {{"perm", kToFirst}}, node.from));
}

bool convert_conv(Rewriter& rw, const Node& node) {
  const auto w = rw.weight_dims(node.in[1]);
  const bool has_bias = node.in.size() > 2 && node.in[2] != ir::kNoValue;
  if (!is_image(rw, node.in[0], tensor::DType::f32) || !w || w->size() != 4) return false;
  std::vector<ValueId> in{to_last(rw, node.in[0], node.from), node.in[1]};
  if (has_bias) in.push_back(node.in[2]);
  finish(rw, node, rw.add("conv_nhwc", std::move(in), node.attrs, node.from));
  return true;
}

bool convert_pool(Rewriter& rw, const Node& node) {
  if (!is_image(rw, node.in[0], tensor::DType::f32) || node.out.size() > 1) return false;
  if (node.attrs.get_int("ceil_mode", 0) != 0 && node.op_name() == "average_pool") return false;
  for (int64_t d : node.attrs.get_ints("dilations")) {
    if (d != 1 && node.op_name() == "average_pool") return false;
  }
  const ValueId x = to_last(rw, node.in[0], node.from);
  ir::Attrs attrs = node.attrs;
  attrs.erase("storage_order");
  finish(rw, node, rw.add(std::string(node.op_name()) + "_nhwc", {x}, std::move(attrs), node.from));
  return true;
}

}  // namespace

size_t use_channels_last(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) {
    if (node.op_name() == "conv") return convert_conv(rw, node);
    const bool pool = node.op_name() == "max_pool" || node.op_name() == "average_pool" ||
                      node.op_name() == "global_average_pool";
    return pool && convert_pool(rw, node);
  });
}

size_t absorb_input_layout(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("conv_nhwc", [&](ir::NodeId, const Node& node) {
    const auto change = rw.producer(node.in[0], "transpose");
    const bool grouped = node.attrs.get_int("group", 1) != 1;
    if (!change || grouped || change->attrs.get_ints("perm") != kToLast || !rw.single_use(node.in[0]))
      return false;
    Node fused = node;
    fused.in[0] = change->in[0];
    fused.attrs.set("input_layout", std::string("nchw"));
    rw.replace(node.out[0], rw.add("conv_nhwc", fused.in, fused.attrs, node.from));
    return true;
  });
}

}  // namespace trireme::passes
