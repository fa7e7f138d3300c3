// decode_attention: the work of a decoding step between its products, for devices where each launch has a
// cost.
#include "ops/attention/decode_attention.h"

#include "ops/precision_rules.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using ir::ValueId;

/// The paged attention of the node; `attrs` must outlive the view.
ir::NodeView attention_of(const ir::NodeView& n) {
  ir::NodeView view{.attrs = n.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}};
  for (const size_t i : {kDaQueries, kDaKeyPages, kDaValuePages, kDaTable, kDaLengths, kDaStarts}) {
    view.in.push_back(n.in[i]);
    view.is_present.push_back(true);
  }
  return view;
}

ir::NodeView append_of(const ir::NodeView& n) {
  ir::NodeView view{.attrs = n.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}};
  for (const size_t i : {kDaKeys, kDaValues, kDaKeyPages, kDaValuePages, kDaSlots}) {
    view.in.push_back(n.in[i]);
    view.is_present.push_back(true);
  }
  return view;
}

std::vector<tensor::TensorType> infer(const ir::NodeView& n) {
  bool is_static = true;
  for (size_t i = 0; i < n.in.size(); ++i)
    is_static = is_static && (!n.present(i) || n.in[i].shape.is_static());
  if (is_static) plan_decode_attention(n);
  return {n.in[kDaQueries], n.in[kDaKeyPages], n.in[kDaValuePages]};
}

std::vector<ValueId> expand(ir::Graph& g, const ir::Node& node) {
  const DecodeAttentionPlan p = plan_decode_attention(g.view(node));
  const auto rotated = [&](ValueId x, int64_t heads) {
    if (p.rotated == 0) return x;
    const ir::Attrs attrs{
        {"num_heads", heads}, {"rotary_embedding_dim", p.rotated}, {"interleaved", int64_t{p.interleaved}}};
    return g.add1(table().need("rotary_embedding"),
                  {x, node.in[kDaCosine], node.in[kDaSine], node.in[kDaPositions]}, attrs, node.from);
  };
  const ValueId q = rotated(node.in[kDaQueries], p.attention.heads);
  const ValueId k = rotated(node.in[kDaKeys], p.attention.pages.kv_heads);
  const std::vector<ValueId> now =
      g.add(table().need("kv_append"),
            {k, node.in[kDaValues], node.in[kDaKeyPages], node.in[kDaValuePages], node.in[kDaSlots]}, {}, 2,
            node.from);
  ir::Attrs attrs;
  for (const char* name : {"scale", "softcap", "left_window_size"}) {
    if (const auto* value = node.attrs.find(name)) attrs.set(name, *value);
  }
  const ValueId y = g.add1(table().need("paged_attention"),
                           {q, now[0], now[1], node.in[kDaTable], node.in[kDaLengths], node.in[kDaStarts]},
                           attrs, node.from);
  return {y, now[0], now[1]};
}

ir::Cost cost(const ir::NodeView& n) {
  const ir::Cost attention = ir::cost_of(table().need("paged_attention").schema, attention_of(n));
  const ir::Cost append = ir::cost_of(table().need("kv_append").schema, append_of(n));
  const auto queries = static_cast<double>(tensor::bytes_of(n.in[kDaQueries]));
  return {.flop = attention.flop, .bytes = attention.bytes + append.bytes + 2 * queries};
}

}  // namespace

DecodeAttentionPlan plan_decode_attention(const ir::NodeView& n) {
  DecodeAttentionPlan p{.attention = plan_paged(attention_of(n))};
  const AppendPlan append = plan_append(append_of(n));
  base::require(append.tokens == p.attention.rows && n.in[kDaQueries].dtype == n.in[kDaKeys].dtype,
                append.tokens, " new keys for ", p.attention.rows, " queries, or of another type");
  if (!n.present(kDaCosine)) return p;
  const tensor::Dims angles = n.in_dims(kDaCosine);
  base::require(
      angles.size() == 2 && angles[0] > 0 && n.in[kDaCosine] == n.in[kDaSine] && n.present(kDaPositions),
      "angles [positions, channels / 2] with a position for each row, not ", n.in[kDaCosine].to_string());
  p.angle_rows = angles[0];
  p.rotated = 2 * angles[1];
  p.interleaved = n.attrs.get_int("interleaved", 0) != 0;
  base::require(p.rotated <= p.attention.pages.dim &&
                    tensor::element_count(n.in_dims(kDaPositions)) == p.attention.rows,
                p.rotated, " rotating channels of ", p.attention.pages.dim);
  return p;
}

ir::OpSchema decode_attention_schema() {
  return {
      .name = "decode_attention",
      .doc =
          "rotates queries and keys, appends keys and values to their pages and attends, as "
          "rotary_embedding, "
          "kv_append and paged_attention do; operands q, k, v [..., tokens, heads dim], key and value pages, "
          "slots, table, lengths, starts, and cosine, sine, positions where channels rotate",
      .precision = ir::PrecisionRule{PrecisionKind::paged, "products, softmax and sums in f32", 3},
      .why_no_cut = "made of a rank's own part of a graph",
      .min_in = kDaCosine,
      .max_in = kDaOperands,
      .min_out = 3,
      .max_out = 3,
      .attrs = {{"interleaved", "int", "rotating pairs are neighbours instead of halves"},
                {"left_window_size", "int", "keys before the query that it sees, -1: all"},
                {"scale", "float", "default 1 / sqrt(dim)"},
                {"softcap", "float", "scores become cap tanh(score / cap); 0: off"}},
      .infer = infer,
      .expand = expand,
      .cost = cost,
      .why_no_grad = "keys and values in pages serve inference; training attends to whole sequences",
      .updates = [](size_t) {
        return std::vector<ir::StateUpdate>{{1, kDaKeyPages}, {2, kDaValuePages}};
      }};
}

/// On the CPU, the operators that it expands to have kernels.
std::vector<ir::Kernel> decode_attention_cpu_kernels() { return {}; }

}  // namespace trireme::ops
