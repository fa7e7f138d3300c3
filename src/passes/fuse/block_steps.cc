// Fuses norms, residuals, gates and attention into the block-format products next to them.
#include "passes/fuse/block_steps.h"

#include <algorithm>

#include "ops/blocks/block_attention.h"
#include "ops/blocks/blocks.h"
#include "ops/table.h"
#include "passes/fuse/decode_parts.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

class BlockSteps {
 public:
  explicit BlockSteps(ir::Graph& graph) : rw_(graph) {}

  size_t run() {
    size_t changes = rw_.for_each("fused_elementwise", [&](NodeId, const Node& n) { return take_gate(n); });
    changes += rw_.for_each("add", [&](NodeId, const Node& n) { return take_residual(n); });
    changes += rw_.for_each("rms_norm", [&](NodeId, const Node& n) { return take_norm(n); });
    changes += rw_.for_each("paged_attention", [&](NodeId, const Node& n) { return take_attention(n); });
    graph().sort();
    return changes;
  }

 private:
  ir::Graph& graph() { return rw_.graph(); }
  bool is_f32(ValueId id) { return graph().type(id).dtype == tensor::DType::f32; }

  /// The product node that computes `id`, if the value is f32.
  std::optional<Node> products_of(ValueId id) {
    std::optional<Node> node = rw_.producer(id, "block_linears");
    if (!node) node = rw_.producer(id, "block_linear");
    return node && is_f32(id) ? node : std::nullopt;
  }
  static size_t result_of(const Node& node, ValueId id) {
    return static_cast<size_t>(std::find(node.out.begin(), node.out.end(), id) - node.out.begin());
  }

  /// silu(gate) * up, where both come from the same product node.
  bool take_gate(const Node& node) {
    if (!is_silu_gate(node) || graph().type(node.in[0]) != graph().type(node.in[1])) return false;
    const std::optional<Node> both = products_of(node.in[0]);
    const bool fits = both && both->out.size() == 2 && rw_.single_use(both->out[0]) &&
                      rw_.single_use(both->out[1]) && result_of(*both, node.in[1]) < 2 &&
                      node.in[0] != node.in[1];
    if (!fits) return false;
    const size_t gate = result_of(*both, node.in[0]);
    Node gated = *both;
    gated.attrs.set("gated", int64_t{1});
    ops::set_block_formats(
        gated.attrs, {ops::block_format_of(both->attrs, gate), ops::block_format_of(both->attrs, 1 - gate)});
    gated.in = {both->in[0], both->in[1 + gate], both->in[2 - gate], operand(*both, 3 + gate),
                operand(*both, 4 - gate)};
    rw_.replace(node.out[0], added("block_linears", gated, 1)[0]);
    return true;
  }

  /// A product and the residual that is added to it.
  bool take_residual(const Node& node) {
    for (const size_t i : {0, 1}) {
      const ValueId y = node.in[i], other = node.in[1 - i];
      const auto product = rw_.producer(y, "block_linear");
      if (!product || !is_f32(y) || !rw_.single_use(y) || graph().type(other) != graph().type(y)) continue;
      if (operand(*product, ops::kBlResidual) != kNoValue) continue;
      Node taken = *product;
      taken.in.resize(ops::kBlResidual, kNoValue);
      taken.in.push_back(other);
      rw_.replace(node.out[0], added("block_linear", taken, 1)[0]);
      return true;
    }
    return false;
  }

  /// A norm whose only readers are products.
  bool take_norm(const Node& norm) {
    const size_t rank = graph().type(norm.in[0]).shape.rank();
    const bool is_simple = norm.out.size() == 1 && !norm.attrs.has("rounded") && is_f32(norm.out[0]) &&
                           graph().type(norm.in[1]).shape.rank() == 1 &&
                           ir::normal_axis(norm.attrs.get_int("axis", -1), rank) + 1 == rank;
    if (!is_simple) return false;
    std::vector<Node> readers;
    for (const Node& node : graph().nodes()) {
      const bool reads =
          node.op != nullptr && !node.in.empty() && node.in[0] == norm.out[0] && rw_.uses(node.out[0]) > 0;
      if (reads && products_of(node.out[0]) && operand(node, norm_operand(node)) == kNoValue)
        readers.push_back(node);
    }
    if (readers.empty() || readers.size() != rw_.uses(norm.out[0])) return false;
    for (const Node& reader : readers) {
      Node taken = reader;
      taken.in[0] = norm.in[0];
      taken.in.resize(std::max(taken.in.size(), norm_operand(reader) + 1), kNoValue);
      taken.in[norm_operand(reader)] = norm.in[1];
      taken.attrs.set("epsilon", norm.attrs.get_float("epsilon", 1e-5));
      const std::vector<ValueId> out = added(reader.op_name(), taken, reader.out.size());
      for (size_t i = 0; i < out.size(); ++i) rw_.replace(reader.out[i], out[i]);
    }
    return true;
  }
  static size_t norm_operand(const Node& node) {
    if (node.op_name() == "block_linear") return ops::kBlNorm;
    return 1 + 2 * ops::joined_products(node.attrs, node.out.size());
  }

  /// Attention over pages whose queries, keys and values are the three results of one product node.
  bool take_attention(const Node& node) {
    const std::optional<DecodeAttention> step = decode_attention_of(rw_, node);
    if (!step || step->y != node.out[0] || !is_f32(step->y)) return false;
    const auto products = rw_.producer(step->node.in[0], "block_linears");
    if (!products || products->out.size() != 3) return false;
    Node taken = *products;
    taken.attrs = step->node.attrs;
    for (const char* name : {"rows", "epsilon"}) {
      if (const auto* value = products->attrs.find(name)) taken.attrs.set(name, *value);
    }
    taken.in = {products->in[0]};
    std::vector<ValueId> floats{operand(*products, norm_operand(*products))};
    std::vector<std::string> formats;
    for (const size_t end : {ops::kDaQueries, ops::kDaKeys, ops::kDaValues}) {
      const size_t i = result_of(*products, step->node.in[end]);
      if (i == 3 || !rw_.single_use(step->node.in[end])) return false;
      taken.in.push_back(products->in[1 + i]);
      floats.push_back(operand(*products, 4 + i));
      formats.push_back(ops::block_format_of(products->attrs, i));
    }
    ops::set_block_formats(taken.attrs, formats);
    taken.in.insert(taken.in.end(), step->node.in.begin() + ops::kDaKeyPages, step->node.in.end());
    taken.in.resize(ops::kBaNorm, kNoValue);
    taken.in.insert(taken.in.end(), floats.begin(), floats.end());
    rw_.replace(node.out[0], added("block_attention", taken, 3)[0]);
    graph().erase(step->append);  // it writes a state, so it would not be removed as unread
    return true;
  }

  std::vector<ValueId> added(std::string_view op, Node like, size_t results) {
    while (like.in.back() == kNoValue) like.in.pop_back();
    return rw_.add_all(op, like, results);
  }

  Rewriter rw_;
};

}  // namespace

size_t fuse_block_steps(ir::Graph& graph) { return BlockSteps(graph).run(); }

}  // namespace trireme::passes
