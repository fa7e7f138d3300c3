// Moves quantized values as bytes instead of as dequantized floats.
#include "passes/precision/byte_moves.h"

#include <algorithm>

#include "passes/precision/narrow_types.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::DType;

bool is_moved(const Node& node, size_t operand) { return ir::moves_operand(node.op->schema, operand); }

/// The node that dequantizes `id`, if its operand is a computed 8-bit value with one scale.
std::optional<Node> dequantization(const Rewriter& rw, ValueId id) {
  const auto node = id == ir::kNoValue ? std::nullopt : rw.producer(id, "dequantize_linear");
  if (!node || node->in.size() != 3 || !is_8_bit(rw.graph().type(node->in[0]).dtype)) return std::nullopt;
  if (rw.known(node->in[0]) != nullptr || node->attrs.get_int("block_size", 0) != 0) return std::nullopt;
  for (size_t i : {size_t{1}, size_t{2}}) {
    if (rw.known(node->in[i]) == nullptr || rw.known(node->in[i])->elements() != 1) return std::nullopt;
  }
  return node;
}

/// False for ops that add zeros of their own (padding, backward ops), which may not be bytes of this scale.
bool fills_nothing(const Node& node) {
  const ir::OpSchema& schema = node.op->schema;
  if (!schema.grad) return false;
  for (size_t i = 0; i < schema.max_in && schema.max_in != ir::kVariadic; ++i) {
    const bool is_there = i < node.in.size() && node.in[i] != ir::kNoValue;
    if (is_moved(node, i) && !is_there) return false;
  }
  return true;
}

/// The dequantizations of all operands that `node` moves; empty unless it only moves such operands.
std::vector<Node> moved(const Rewriter& rw, const Node& node) {
  std::vector<Node> found;
  if (node.op == nullptr || !node.op->schema.is_rearrangement || !fills_nothing(node)) return {};
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (!is_moved(node, i)) continue;
    const auto from = dequantization(rw, node.in[i]);
    if (!from) return {};
    found.push_back(*from);
  }
  return found;
}

bool have_one_scale(const Rewriter& rw, const std::vector<Node>& from) {
  const auto same = [&](const Node& a, const Node& b) {
    return rw.graph().type(a.in[0]).dtype == rw.graph().type(b.in[0]).dtype &&
           rw.known(a.in[1])->to_doubles() == rw.known(b.in[1])->to_doubles() &&
           rw.known(a.in[2])->to_ints() == rw.known(b.in[2])->to_ints();
  };
  return std::all_of(from.begin(), from.end(), [&](const Node& n) { return same(n, from[0]); });
}

/// `node` with the operands that it moves replaced.
Node with_moved(const Node& node, const std::vector<ValueId>& values) {
  Node out = node;
  size_t next = 0;
  for (size_t i = 0; i < out.in.size(); ++i) {
    if (is_moved(node, i)) out.in[i] = values[next++];
  }
  return out;
}

/// move(dequantize(a), ...) with one scale.
bool sink_dequantization(Rewriter& rw, const Node& node) {
  const std::vector<Node> from = moved(rw, node);
  if (from.empty() || !have_one_scale(rw, from)) return false;
  std::vector<ValueId> bytes;
  for (const Node& n : from) bytes.push_back(n.in[0]);
  ir::Attrs attrs;  // without the axis, which says nothing of a single scale
  if (const int64_t type = from[0].attrs.get_int("output_dtype", 0)) attrs.set("output_dtype", type);
  const std::vector<ValueId> results = rw.add_all(node.op_name(), with_moved(node, bytes), node.out.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (node.out[i] == ir::kNoValue || rw.uses(node.out[i]) == 0) continue;
    const ValueId y =
        rw.add("dequantize_linear", {results[i], from[0].in[1], from[0].in[2]}, attrs, node.from);
    rw.replace(node.out[i], y);
  }
  return true;
}

/// quantize(move(dequantize(a), ...)) with several scales.
bool raise_quantization(Rewriter& rw, const Node& quantize) {
  if (!rw.single_use(quantize.in[0]) || quantize.in.size() != 3) return false;
  const ir::Node* node = rw.graph().producer(quantize.in[0]);
  if (node == nullptr || node->op == nullptr || node->out.size() != 1) return false;
  const Node move = *node;
  const std::vector<Node> from = moved(rw, move);
  const bool has_scale = rw.known(quantize.in[1]) != nullptr && rw.known(quantize.in[1])->elements() == 1;
  if (from.empty() || !has_scale || !is_8_bit(rw.graph().type(quantize.out[0]).dtype)) return false;
  std::vector<ValueId> bytes;
  for (size_t i = 0; i < from.size(); ++i)
    bytes.push_back(rw.add("quantize_linear", {from[i].out[0], quantize.in[1], quantize.in[2]},
                           quantize.attrs, quantize.from));
  const Node moved_bytes = with_moved(move, bytes);
  rw.replace(quantize.out[0], rw.add(move.op_name(), moved_bytes.in, move.attrs, move.from));
  return true;
}

}  // namespace

size_t move_bytes(ir::Graph& graph) {
  size_t total = 0;
  for (size_t changes = 1; changes > 0;) {
    Rewriter rw(graph);
    changes = rw.for_each([&](ir::NodeId, const Node& seen) {
      // Operands may have been replaced since the walk began.
      if (seen.out.empty() || seen.out[0] == ir::kNoValue || rw.uses(seen.out[0]) == 0) return false;
      const Node* now = rw.graph().producer(seen.out[0]);
      if (now == nullptr || now->op == nullptr || now->in.empty()) return false;
      const Node node = *now;
      if (node.op_name() == "quantize_linear") return raise_quantization(rw, node);
      return sink_dequantization(rw, node);
    });
    graph.sort();
    total += changes;
  }
  return total;
}

}  // namespace trireme::passes
