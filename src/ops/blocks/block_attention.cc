// block_attention: norm, products of queries, keys and values with weights in blocks, rotation, append and
// paged attention, all in one loop of the team.
#include "ops/blocks/block_attention.h"

#include "ops/precision_rules.h"
#include "ops/stored_weights.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using ir::ValueId;
using tensor::TensorType;

/// The type of x with the rows of a weight matrix as its last extent.
TensorType rows_of(const ir::NodeView& n, size_t weights) {
  TensorType y = n.in[kBaX];
  if (!y.shape.has_rank()) return y;
  std::vector<tensor::Dim> dims = y.shape.dims();
  base::require(!dims.empty(), "block_attention of rows [..., k], not ", n.in[kBaX].to_string());
  dims.back() = block_matrix(n, weights, weights - kBaQuery).n;
  return {y.dtype, tensor::Shape(std::move(dims))};
}

/// The decode_attention that the node contains; the attributes must outlive the view.
ir::NodeView step_of(const ir::NodeView& n) {
  ir::NodeView view{.attrs = n.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}};
  for (const size_t w : {kBaQuery, kBaKey, kBaValue}) view.in.push_back(rows_of(n, w));
  view.is_present.assign(3, true);
  for (size_t i = kBaKeyPages; i <= kBaPositions; ++i) {
    view.in.push_back(i < n.in.size() ? n.in[i] : TensorType{});
    view.is_present.push_back(n.present(i));
  }
  return view;
}

std::vector<TensorType> infer(const ir::NodeView& n) {
  bool is_static = true;
  for (size_t i = 0; i < n.in.size(); ++i)
    is_static = is_static && (!n.present(i) || n.in[i].shape.is_static());
  if (is_static) plan_block_attention(n);
  return {rows_of(n, kBaQuery), n.in[kBaKeyPages], n.in[kBaValuePages]};
}

std::vector<ValueId> expand(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  ir::Attrs products, attention;
  for (const char* name : {"rows", "epsilon"}) {
    if (const auto* value = node.attrs.find(name)) products.set(name, *value);
  }
  for (const char* name : {"interleaved", "left_window_size", "scale", "softcap"}) {
    if (const auto* value = node.attrs.find(name)) attention.set(name, *value);
  }
  std::vector<ValueId> in;
  for (size_t i = 0; i < 3; ++i) {
    std::vector<ValueId> own{node.in[kBaX], node.in[kBaQuery + i], operand_or_none(node, kBaQueryBias + i),
                             operand_or_none(node, kBaNorm)};
    while (own.back() == ir::kNoValue) own.pop_back();
    products.set("format", block_format_of(node.attrs, i));
    in.push_back(g.add1(table().need("block_linear"), std::move(own), products, node.from));
  }
  for (size_t i = kBaKeyPages; i <= kBaPositions; ++i) in.push_back(operand_or_none(node, i));
  while (in.back() == ir::kNoValue) in.pop_back();
  return g.add(table().need("decode_attention"), std::move(in), attention, 3, node.from);
}

ir::Cost cost(const ir::NodeView& n) {
  const BlockAttentionPlan p = plan_block_attention(n);
  const ir::NodeView step = step_of(n);
  ir::Cost c = ir::cost_of(table().need("decode_attention").schema, step);
  for (const BlockMatrix* w : {&p.query, &p.key, &p.value}) {
    c.flop += 2 * static_cast<double>(p.rows * w->k * w->n);
    c.bytes += static_cast<double>(w->n * w->row_bytes());
  }
  c.bytes += static_cast<double>(bytes_of(n.in[kBaX]));
  return c;
}

}  // namespace

BlockAttentionPlan plan_block_attention(const ir::NodeView& n) {
  const ir::NodeView step = step_of(n);
  BlockAttentionPlan p{.step = plan_decode_attention(step),
                       .query = block_matrix(n, kBaQuery, 0),
                       .key = block_matrix(n, kBaKey, 1),
                       .value = block_matrix(n, kBaValue, 2),
                       .form = block_rows(n.attrs),
                       .epsilon = block_epsilon(n.attrs)};
  p.rows = p.step.attention.rows;
  const int64_t k = n.in_dims(kBaX).back();
  const size_t biases[] = {kBaQueryBias, kBaKeyBias, kBaValueBias};
  const BlockMatrix* weights[] = {&p.query, &p.key, &p.value};
  for (size_t i = 0; i < 3; ++i) {
    base::require(weights[i]->k == k, "weights of depth ", weights[i]->k, " for rows of ", k);
    base::require(!n.present(biases[i]) || n.in_dims(biases[i]) == tensor::Dims{weights[i]->n}, "bias of ",
                  weights[i]->n, " channels");
  }
  base::require(!n.present(kBaNorm) || n.in_dims(kBaNorm) == tensor::Dims{k}, "the norm's scale for rows of ",
                k);
  return p;
}

ir::OpSchema block_attention_schema() {
  return {
      .name = "block_attention",
      .doc =
          "queries, keys and values of x by weights in blocks, as block_linear does, then decode_attention: "
          "operands x [..., tokens, k], three matrices, what decode_attention takes behind its values, then "
          "the "
          "scale of an RMS norm before the products and three biases",
      .precision = ir::PrecisionRule{PrecisionKind::paged, "products, softmax and sums in f32", 1},
      .is_product = true,
      .why_no_cut = "made of a rank's own part of a graph",
      .min_in = kBaCosine,
      .max_in = kBaOperands,
      .min_out = 3,
      .max_out = 3,
      .attrs = {{"epsilon", "float", "of the norm, default 1e-5"},
                {"format", kBlockFormatKind, "as block_linear"},
                {"formats", "strings", "as block_linears"},
                {"interleaved", "int", "rotating pairs are neighbours instead of halves"},
                {"left_window_size", "int", "keys before the query that it sees, -1: all"},
                {"rows", "string", "as block_linear"},
                {"scale", "float", "default 1 / sqrt(dim)"},
                {"softcap", "float", "scores become cap tanh(score / cap); 0: off"}},
      .infer = infer,
      .expand = expand,
      .cost = cost,
      .why_no_grad = "keys and values in pages serve inference; training attends to whole sequences",
      .updates = [](size_t) {
        return std::vector<ir::StateUpdate>{{1, kBaKeyPages}, {2, kBaValuePages}};
      }};
}

}  // namespace trireme::ops
