// Finds the nodes around attention over pages: rotations, the append, and casts.
#include "passes/fuse/decode_parts.h"

#include <algorithm>

#include "ops/attention/paged.h"
#include "ops/table.h"

namespace trireme::passes {
namespace {

using ir::kNoValue;
using ir::Node;
using ir::ValueId;

/// A value x and, if a rotation computes it, the rotation's operand and angles.
struct Rotated {
  ValueId x;
  std::optional<Node> by;
};
Rotated before_rotation(const Rewriter& rw, ValueId id) {
  const auto node = rw.producer(id, "rotary_embedding");
  const bool is_taken = node && rw.single_use(id) && operand(*node, 3) != kNoValue &&
                        rw.graph().type(node->in[0]).shape.rank() == 3;
  return is_taken ? Rotated{node->in[0], node} : Rotated{id, std::nullopt};
}

bool is_same_rotation(const Node& a, const Node& b) {
  for (const char* name : {"interleaved", "rotary_embedding_dim"}) {
    if (a.attrs.get_int(name, 0) != b.attrs.get_int(name, 0)) return false;
  }
  return std::equal(a.in.begin() + 1, a.in.end(), b.in.begin() + 1, b.in.end());
}

/// The f32 value that `id` is rounded from for 16-bit pages, if attention is its only reader; else kNoValue.
ValueId unrounded(const Rewriter& rw, ValueId id) {
  const auto cast = rw.producer(id, "cast");
  const bool is_rounding =
      cast && rw.single_use(id) && rw.graph().type(cast->in[0]).dtype == tensor::DType::f32;
  return is_rounding ? cast->in[0] : kNoValue;
}

/// The cast of attention's result to f32, if it is the only reader.
std::optional<Node> widening(const Rewriter& rw, ValueId y) {
  for (const Node& node : rw.graph().nodes()) {
    const bool is_it = node.op != nullptr && node.op_name() == "cast" && node.in[0] == y &&
                       rw.single_use(y) && rw.graph().type(node.out[0]).dtype == tensor::DType::f32;
    if (is_it) return node;
  }
  return std::nullopt;
}

/// Operands and result of attention: those in f32, without the casts around it, if the kernel takes f32.
struct Ends {
  ValueId q, k, v, y;
};
Ends ends_of(const Rewriter& rw, const Node& attention, const Node& append) {
  const Ends wide{unrounded(rw, attention.in[0]), unrounded(rw, append.in[0]), unrounded(rw, append.in[1]),
                  kNoValue};
  const auto widened = widening(rw, attention.out[0]);
  const bool is_wide = wide.q != kNoValue && wide.k != kNoValue && wide.v != kNoValue && widened;
  if (is_wide) return {wide.q, wide.k, wide.v, widened->out[0]};
  return {attention.in[0], append.in[0], append.in[1], attention.out[0]};
}

}  // namespace

ValueId operand(const Node& node, size_t i) { return i < node.in.size() ? node.in[i] : kNoValue; }

bool is_silu_gate(const Node& node) {
  static const std::vector<std::string> steps{"r0 swish i0", "o0 mul r0 i1"};
  const std::vector<double> params = node.attrs.get_floats("params");
  return node.op_name() == "fused_elementwise" && node.in.size() == 2 && node.out.size() == 1 &&
         node.attrs.get_strings("steps") == steps && !params.empty() && params[0] == 1;
}

std::optional<DecodeAttention> decode_attention_of(const Rewriter& rw, const Node& node) {
  if (node.in.size() > ops::kPagedSinks) return std::nullopt;  // no kernel of the joined step takes sinks
  const auto append = rw.producer(node.in[1], "kv_append");
  if (!append || append->out.size() != 2 || append->out[0] != node.in[1] || append->out[1] != node.in[2])
    return std::nullopt;
  // The update of the state counts as a second reader of the keys.
  if (rw.uses(node.in[1]) != 2 || rw.uses(node.in[2]) != 1) return std::nullopt;
  const Ends ends = ends_of(rw, node, *append);
  Rotated q = before_rotation(rw, ends.q), k = before_rotation(rw, ends.k);
  const bool is_rotated = q.by && k.by && is_same_rotation(*q.by, *k.by);
  if (!is_rotated) q = {ends.q, std::nullopt}, k = {ends.k, std::nullopt};
  Node joined;
  joined.op = &ops::table().need("decode_attention");
  joined.from = node.from;
  joined.attrs = node.attrs;
  joined.in = {q.x,           k.x,        ends.v,     append->in[2], append->in[3],
               append->in[4], node.in[3], node.in[4], node.in[5]};
  if (is_rotated) {
    joined.in.insert(joined.in.end(), q.by->in.begin() + 1, q.by->in.end());
    joined.attrs.set("interleaved", q.by->attrs.get_int("interleaved", 0));
  }
  return DecodeAttention{joined, ends.y, rw.graph().value(append->out[0]).producer};
}

}  // namespace trireme::passes
