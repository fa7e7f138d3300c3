// conv_nhwc: channels-last convolution over one to three spatial axes with bias, residual and activation.
#include "ops/conv/conv_cuts.h"
#include "ops/conv/conv_grad.h"
#include "ops/dense/activation.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Shape;

std::vector<tensor::TensorType> infer_conv_nhwc(const ir::NodeView& n) {
  const Shape& x = n.in[0].shape;
  const Shape& w = n.in[1].shape;
  const size_t rank = x.rank();
  base::require(rank >= 3 && rank <= 5 && w.rank() == rank,
                "conv_nhwc takes x and w of one rank from 3 to 5, got ", x.to_string(), " and ",
                w.to_string());
  const size_t first = conv_reads_nchw(n.attrs) ? 2 : 1;
  require_groups(n.attrs, x[first == 2 ? 1 : rank - 1], w);
  std::vector<Dim> spatial;
  std::vector<int64_t> kernel;
  for (size_t i = 0; i < rank - 2; ++i) {
    spatial.push_back(x[first + i]);
    kernel.push_back(w[2 + i].value());
  }
  std::vector<Dim> out = window_out(n.attrs, kernel, spatial);
  out.insert(out.begin(), x[0]);
  out.push_back(w[0]);
  return {{n.in[0].dtype, Shape(std::move(out))}};
}

ir::Cost conv_nhwc_cost(const ir::NodeView& n) { return conv_cost(n, 1); }

ir::ValueId operand(const ir::Node& node, size_t i) { return i < node.in.size() ? node.in[i] : ir::kNoValue; }

std::vector<ir::ValueId> expand_conv_nhwc(ir::Graph& graph, const ir::Node& node) {
  const ir::OpDef& transpose = table().need("transpose");
  const size_t rank = graph.type(node.in[1]).shape.rank();
  const ir::Attrs to_nchw{{"perm", channels_first(rank)}};
  const ir::Attrs to_nhwc{{"perm", channels_last(rank)}};
  ir::ValueId x = node.in[0];
  if (!conv_reads_nchw(node.attrs)) x = graph.add1(transpose, {x}, to_nchw, node.from);
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
              "y and residual [n,oh,ow,oc]; the same of one spatial axis or of three",
          .precision = kProduct,
          .is_product = true,
          .cut = conv_nhwc_cut,
          .localise = localise_conv,
          .min_in = 2,
          .max_in = 4,
          .attrs = std::move(attrs),
          .infer = infer_conv_nhwc,
          .expand = expand_conv_nhwc,
          .cost = conv_nhwc_cost,
          .grad = rule(conv_nhwc_gradients)};
}

}  // namespace trireme::ops
