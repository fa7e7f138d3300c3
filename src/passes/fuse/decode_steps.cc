// Fuses the nodes between and around the products of a decoding step into a few launches.
#include "passes/fuse/decode_steps.h"

#include <algorithm>

#include "ops/dense/row_linear.h"
#include "ops/table.h"
#include "passes/fuse/decode_parts.h"

namespace trireme::passes {
namespace {

using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

/// The results of a new node, or nothing if no kernel of the device runs it.
std::vector<ValueId> made(ir::Graph& graph, const Node& like, size_t results) {
  const std::vector<ValueId> out = graph.add(*like.op, like.in, like.attrs, results, like.from);
  const NodeId id = graph.value(out[0]).producer;
  if (ops::choose_kernel(*like.op, graph.view(graph.node(id)), tensor::DeviceKind::cuda) != nullptr)
    return out;
  graph.erase(id);
  return {};
}

// --- attention ---

bool join_attention(Rewriter& rw, const Node& node) {
  const std::optional<DecodeAttention> joined = decode_attention_of(rw, node);
  if (!joined) return false;
  const std::vector<ValueId> out = made(rw.graph(), joined->node, 3);
  if (out.empty()) return false;
  rw.replace(joined->y, out[0]);
  // The append writes a state, so it would not be removed as unread.
  rw.graph().erase(joined->append);
  return true;
}

// --- products ---

/// A product whose weight is stored row by row: linear, or weight_only_linear.
struct RowProduct {
  Node node;
  ValueId y;
  ValueId w, scale = kNoValue, zero = kNoValue, bias = kNoValue, residual = kNoValue;
  int64_t bits = 0, group = 0;
};

std::optional<RowProduct> row_product(const Node& node) {
  if (node.out.size() != 1) return std::nullopt;
  if (node.op_name() == "linear" && node.attrs.get_int("transposed", 0) != 0)
    return RowProduct{.node = node,
                      .y = node.out[0],
                      .w = node.in[1],
                      .bias = operand(node, 2),
                      .residual = operand(node, 3)};
  if (node.op_name() != "weight_only_linear") return std::nullopt;
  return RowProduct{.node = node,
                    .y = node.out[0],
                    .w = node.in[1],
                    .scale = operand(node, 2),
                    .zero = operand(node, 3),
                    .bias = operand(node, 4),
                    .bits = node.attrs.get_int("bits", 8),
                    .group = node.attrs.get_int("group", 64)};
}

bool is_plain_product(const RowProduct& p) {
  return p.node.attrs.get_string("activation", "none") == "none" && p.residual == kNoValue;
}

class ProductRewriter {
 public:
  explicit ProductRewriter(ir::Graph& graph) : rw_(graph) {}

  size_t run() {
    size_t changes = rw_.for_each([&](NodeId, const Node& node) {
      return node.op_name() == "mul" ? join_gate(node, "") : is_silu_gate(node) && join_gate(node, "silu");
    });
    changes += rw_.for_each("rms_norm", [&](NodeId, const Node& node) { return join_norm(node); });
    changes += rw_.for_each("linear", [&](NodeId, const Node& node) { return take_alone(node); });
    changes += rw_.for_each("add", [&](NodeId, const Node& node) { return join_sum(node); });
    return changes;
  }

 private:
  ir::Graph& graph() { return rw_.graph(); }

  /// One node for several products of `x`; residual and activation are those of the first.
  Node joined(ValueId x, const std::vector<RowProduct>& products) {
    Node node;
    node.op = &ops::table().need("row_linear");
    node.from = products[0].node.from;
    if (products[0].bits == 0) node.attrs = products[0].node.attrs;
    node.attrs.erase("transposed");
    if (products[0].bits != 0)
      node.attrs.set("bits", products[0].bits), node.attrs.set("group", products[0].group);
    node.in = {x, kNoValue, products[0].residual};
    for (const RowProduct& p : products) node.in.insert(node.in.end(), {p.w, p.scale, p.zero, p.bias});
    while (node.in.back() == kNoValue) node.in.pop_back();
    return node;
  }

  std::optional<RowProduct> product_of(ValueId y) const {
    const Node* node = rw_.graph().producer(y);
    return node == nullptr || !rw_.single_use(y) ? std::nullopt : row_product(*node);
  }

  /// act(x a') * (x b') as one node; a norm before them is fused later. `activation`: that of the first
  /// product, if the product itself has none.
  bool join_gate(const Node& node, const std::string& activation) {
    if (graph().type(node.in[0]) != graph().type(node.out[0])) return false;
    std::optional<RowProduct> gate = product_of(node.in[0]), up = product_of(node.in[1]);
    if (!gate || !up) return false;
    if (activation.empty() && is_plain_product(*gate)) std::swap(gate, up);
    const bool fits = is_plain_product(*up) && (activation.empty() || is_plain_product(*gate)) &&
                      gate->residual == kNoValue && gate->node.in[0] == up->node.in[0] &&
                      gate->bits == up->bits && gate->group == up->group;
    if (!fits) return false;
    Node both = joined(gate->node.in[0], {*gate, *up});
    both.attrs.set("gated", int64_t{1});
    if (!activation.empty()) both.attrs.set("activation", activation);
    const std::vector<ValueId> out = made(graph(), both, 1);
    if (out.empty()) return false;
    rw_.replace(node.out[0], out[0]);
    return true;
  }

  /// The present readers of a value, including gated pairs that were made before.
  std::vector<Node> live_readers(ValueId id) {
    std::vector<Node> nodes;
    for (size_t n = 0; n < graph().nodes().size(); ++n) {
      const Node& node = graph().node(NodeId(static_cast<uint32_t>(n)));
      const bool reads = node.op != nullptr && std::find(node.in.begin(), node.in.end(), id) != node.in.end();
      const bool is_live = reads && std::any_of(node.out.begin(), node.out.end(), [&](ValueId out) {
                             return out != kNoValue && rw_.uses(out) > 0;
                           });
      if (is_live || (reads && node.op->schema.updates_state())) nodes.push_back(node);
    }
    return nodes;
  }

  /// A norm that is read only by products of few rows is fused into one launch of these products.
  bool join_norm(const Node& norm) {
    const bool is_simple = norm.out.size() == 1 && !norm.attrs.has("rounded");
    const size_t rank = graph().type(norm.in[0]).shape.rank();
    if (!is_simple || ir::normal_axis(norm.attrs.get_int("axis", -1), rank) + 1 != rank) return false;
    const std::vector<Node> readers = live_readers(norm.out[0]);
    if (readers.empty() || readers.size() != rw_.uses(norm.out[0])) return false;
    const double epsilon = norm.attrs.get_float("epsilon", 1e-5);
    if (readers.size() == 1 && readers[0].op_name() == "row_linear") {
      Node taken = readers[0];
      // It may read the norm as its residual instead.
      if (taken.in[ops::kRlX] != norm.out[0] || taken.has_operand(ops::kRlNorm)) return false;
      taken.in[ops::kRlX] = norm.in[0];
      taken.in[ops::kRlNorm] = norm.in[1];
      taken.attrs.set("epsilon", epsilon);
      return replace(taken, readers[0].out);
    }
    std::vector<RowProduct> products;
    std::vector<ValueId> results;
    for (const Node& reader : readers) {
      const std::optional<RowProduct> p = row_product(reader);
      if (!p || p->node.in[0] != norm.out[0] || products.size() == 3) return false;
      if (readers.size() > 1 && !is_plain_product(*p)) return false;
      if (!products.empty() && (p->bits != products[0].bits || p->group != products[0].group)) return false;
      products.push_back(*p);
      results.push_back(p->y);
    }
    Node taken = joined(norm.in[0], products);
    taken.in[ops::kRlNorm] = norm.in[1];
    taken.attrs.set("epsilon", epsilon);
    return replace(taken, results);
  }

  /// For the remaining products: one product with its residual and activation.
  bool take_alone(const Node& node) {
    const std::optional<RowProduct> p = row_product(node);
    return p && rw_.uses(p->y) > 0 && replace(joined(node.in[0], {*p}), node.out);
  }

  /// A product with a stored weight and the value that is added to it.
  bool join_sum(const Node& node) {
    for (const size_t i : {0, 1}) {
      const std::optional<RowProduct> p = product_of(node.in[i]);
      const ValueId other = node.in[1 - i];
      if (!p || p->bits == 0 || graph().type(other) != graph().type(p->y)) continue;
      Node taken = joined(p->node.in[0], {*p});
      taken.in[ops::kRlResidual] = other;
      if (replace(taken, node.out)) return true;
    }
    return false;
  }

  bool replace(const Node& by, const std::vector<ValueId>& results) {
    const std::vector<ValueId> out = made(graph(), by, results.size());
    if (out.empty()) return false;
    for (size_t i = 0; i < results.size(); ++i) rw_.replace(results[i], out[i]);
    return true;
  }

  Rewriter rw_;
};

}  // namespace

size_t fuse_decode_steps(ir::Graph& graph) {
  Rewriter rw(graph);
  bool decodes = false;
  const size_t attentions = rw.for_each("paged_attention", [&](NodeId, const Node& node) {
    decodes = true;
    return join_attention(rw, node);
  });
  graph.sort();
  // Other graphs keep their products: they have many rows, or the library's epilogue is more valuable.
  return decodes ? attentions + ProductRewriter(graph).run() : 0;
}

}  // namespace trireme::passes
