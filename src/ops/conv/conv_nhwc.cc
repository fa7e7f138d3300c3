// conv_nhwc: 2-D convolution over channels-last activations with bias, residual and
// activation.
#include "ops/conv/conv_cuts.h"
#include "ops/conv/conv_grad.h"
#include "ops/dense/activation.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Shape;

bool reads_nchw(const ir::Attrs& attrs) { return attrs.get_string("input_layout", "nhwc") == "nchw"; }

std::vector<tensor::TensorType> infer(const ir::NodeView& n) {
  const Shape& x = n.in[0].shape;
  const Shape& w = n.in[1].shape;
  base::require(x.rank() == 4 && w.rank() == 4, "conv_nhwc takes x and w of rank 4, got ", x.to_string(),
                " and ", w.to_string());
  const bool nchw = reads_nchw(n.attrs);
  const std::vector<Dim> spatial{nchw ? x[2] : x[1], nchw ? x[3] : x[2]};
  const Dim& channels = nchw ? x[1] : x[3];
  require_groups(n.attrs, channels, w);
  const std::vector<Dim> out = window_out(n.attrs, {w[2].value(), w[3].value()}, spatial);
  return {{n.in[0].dtype, Shape({x[0], out[0], out[1], w[0]})}};
}

ir::Cost cost(const ir::NodeView& n) { return conv_cost(n, 1); }

ir::ValueId operand(const ir::Node& node, size_t i) { return i < node.in.size() ? node.in[i] : ir::kNoValue; }

std::vector<ir::ValueId> expand(ir::Graph& graph, const ir::Node& node) {
  const ir::OpDef& transpose = table().need("transpose");
  const ir::Attrs to_nchw{{"perm", std::vector<int64_t>{0, 3, 1, 2}}};
  const ir::Attrs to_nhwc{{"perm", std::vector<int64_t>{0, 2, 3, 1}}};
  ir::ValueId x = node.in[0];
  if (!reads_nchw(node.attrs)) x = graph.add1(transpose, {x}, to_nchw, node.from);
  ir::Attrs attrs = node.attrs;
  for (const char* name : {"activation", "lo", "hi", "alpha", "beta", "act_before_residual", "input_layout"})
    attrs.erase(name);
  const ir::ValueId y = graph.add1(table().need("conv"), {x, node.in[1]}, attrs, node.from);
  ir::ValueId acc = graph.add1(transpose, {y}, to_nhwc, node.from);
  if (operand(node, 2) != ir::kNoValue)
    acc = graph.add1(table().need("add"), {acc, operand(node, 2)}, {}, node.from);
  return {expand_finish(graph, acc, operand(node, 3), activation_of(node.attrs))};
}

}  // namespace

ir::OpSchema conv_nhwc_schema() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  for (const ir::AttrSpec& a : activation_attrs()) attrs.push_back(a);
  attrs.push_back({"group", "int", "channels fall into this many independent groups"});
  attrs.push_back({"input_layout", "string", "nhwc, or nchw: the first layer reads the model's own layout"});
  return {.name = "conv_nhwc",
          .doc =
              "y = activation(conv(x, w) + bias + residual); x [n,h,w,c], w [oc,c/group,kh,kw], "
              "y and residual [n,oh,ow,oc]",
          .precision = kProduct,
          .is_product = true,
          .cut = conv_nhwc_cut,
          .localise = localise_conv,
          .min_in = 2,
          .max_in = 4,
          .attrs = std::move(attrs),
          .infer = infer,
          .expand = expand,
          .cost = cost,
          .grad = rule(conv_nhwc_gradients)};
}

}  // namespace trireme::ops
