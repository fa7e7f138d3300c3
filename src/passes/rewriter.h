// What pattern passes share: looking up producers, single uses and scalar constants; replacing values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// A graph that is being rewritten. Ids of the nodes that for_each visits stay valid; new nodes are appended,
/// and sort() puts them in order later.
class Rewriter {
 public:
  explicit Rewriter(ir::Graph& graph) : graph_(graph) { count(); }

  ir::Graph& graph() { return graph_; }
  const ir::Graph& graph() const { return graph_; }
  /// The producer of `id` if it is a live node of op `op`, as a copy (ids stay valid when nodes are added).
  std::optional<ir::Node> producer(ir::ValueId id, std::string_view op) const;
  /// Whether one node alone reads `id` and it is no graph output: its producer may be merged into the reader.
  bool single_use(ir::ValueId id) const { return id != ir::kNoValue && uses(id) == 1; }
  size_t uses(ir::ValueId id) const { return ir::index(id) < uses_.size() ? uses_[ir::index(id)] : 0; }

  const tensor::Tensor* known(ir::ValueId id) const { return graph_.known(id); }
  /// The value of a constant with one element, or nullopt.
  std::optional<double> scalar(ir::ValueId id) const;
  bool is_scalar(ir::ValueId id, double value, double tolerance = 1e-6) const;
  /// Integers of a small constant; nullopt if unknown.
  std::optional<std::vector<int64_t>> ints(ir::ValueId id) const;
  /// Static extents; nullopt if any is unknown.
  std::optional<tensor::Dims> dims(ir::ValueId id) const;

  /// Extents of a weight: a param, a constant or a state; nullopt for computed values and inputs.
  std::optional<tensor::Dims> weight_dims(ir::ValueId id) const;
  bool is_weight(ir::ValueId id) const { return weight_dims(id).has_value(); }
  /// A weight under other extents of equal element count.
  ir::ValueId reshaped_weight(ir::ValueId id, const tensor::Dims& to, const std::string& from);

  /// Splits the operands of a commutative node into (match(a), other); nullopt if neither matches.
  template <class F>
  static std::optional<std::pair<ir::ValueId, ir::ValueId>> either(const ir::Node& node, F&& match) {
    if (node.in.size() != 2) return std::nullopt;
    if (match(node.in[0])) return std::pair{node.in[0], node.in[1]};
    if (match(node.in[1])) return std::pair{node.in[1], node.in[0]};
    return std::nullopt;
  }
  /// (scalar value, other operand) of a commutative node.
  std::optional<std::pair<double, ir::ValueId>> scalar_operand(const ir::Node& node) const;

  /// Adds a node of the named op with one result.
  ir::ValueId add(std::string_view op, std::vector<ir::ValueId> in, ir::Attrs attrs, const std::string& from);
  /// Adds a node of the named op with the operands, attributes and source of `like`.
  std::vector<ir::ValueId> add_all(std::string_view op, const ir::Node& like, size_t results);
  ir::ValueId constant(tensor::Tensor data) { return graph_.add_constant(std::move(data)); }
  /// The value under other extents of equal element count: itself if it has these.
  ir::ValueId reshaped(ir::ValueId id, const tensor::Dims& to, const std::string& from);
  /// Makes the readers of `from` read `to`, which takes the name of `from`, and updates the use counts of all
  /// nodes that this brings to life or makes dead.
  void replace(ir::ValueId from, ir::ValueId to);
  /// Calls replace() and returns true if both values have one type, else changes nothing: constants of a
  /// pattern may broadcast a value to a higher rank than that of the operator in its place.
  bool replace_same(ir::ValueId from, ir::ValueId to);

  /// Calls f(id, node copy) for every live node present at the start; f returns true if it rewrote something.
  /// Returns how often it did.
  template <class F>
  size_t for_each(F&& f) {
    size_t changes = 0;
    const size_t count = graph_.nodes().size();
    for (size_t n = 0; n < count; ++n) {
      const auto id = ir::NodeId(static_cast<uint32_t>(n));
      if (graph_.node(id).op == nullptr) continue;
      const ir::Node node = graph_.node(id);
      if (f(id, node)) ++changes;
    }
    return changes;
  }
  /// for_each over the nodes of one op.
  template <class F>
  size_t for_each(std::string_view op, F&& f) {
    return for_each([&](ir::NodeId id, const ir::Node& node) { return node.op_name() == op && f(id, node); });
  }

 private:
  void count();
  /// Adds `count` readers of `id`. A producer that had none becomes live and adds a reader to each operand.
  void gain(ir::ValueId id, size_t count);
  /// Records that `id` has no readers any more. Unless another result of its producer is read, the producer
  /// is dead and each of its operands loses a reader.
  void lose_all(ir::ValueId id);
  ir::Graph& graph_;
  std::vector<size_t> uses_;  ///< live readers of each value; a graph output counts as two
  std::vector<size_t>
      read_results_;  ///< of each node: results with live readers; a node is live if it has any
};

/// Marks results of a copied node as absent where the original's are, so that kernels do not write them.
void leave_out(ir::Graph& graph, const ir::Node& original, const std::vector<ir::ValueId>& copy);

}  // namespace trireme::passes
