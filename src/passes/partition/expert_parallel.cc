// Mixtures whose experts are shared out: rows of choices get a dimension of parts, one for each rank.
#include "passes/partition/expert_parallel.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "ops/experts/experts.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

class ExpertSplit {
 public:
  ExpertSplit(ir::Graph& graph, const std::map<std::string, tensor::Shard>& placed,
              const tensor::MeshShape& mesh)
      : graph_(graph), placed_(placed), mesh_(mesh) {}

  size_t run() {
    size_t changes = 0;
    const size_t count = graph_.nodes().size();
    for (size_t n = 0; n < count; ++n) {
      const Node node = graph_.nodes()[n];  // a copy, as the graph grows
      if (node.op == nullptr) continue;
      const ops::ExpertPlaces* at = ops::expert_places(node.op->schema);
      const int64_t parts = at == nullptr ? 1 : parts_of(node);
      if (parts > 1) {
        split(node, *at, parts);
        ++changes;
      } else if (reads_parts(node)) {
        follow(node);
      }
    }
    for (ValueId id : graph_.outputs()) need_unread(id, "an output");
    if (changes > 0) graph_.sort();
    return changes;
  }

 private:
  /// Ranks that have different experts of a product: 1 where its weight is whole, or split through experts.
  int64_t parts_of(const Node& node) const {
    const auto at = placed_.find(graph_.value(node.in[ops::kExWeights]).name);
    if (at == placed_.end() || node.attrs.has("parts")) return 1;
    int64_t parts = 1;
    for (size_t a = 0; a < mesh_.axes().size(); ++a) {
      const tensor::Placement p = at->second.on(a);
      if (p.is_split() && p.dim == 0 && p.sections == 1) parts *= mesh_.axes()[a].extent;
    }
    const int64_t experts = ops::expert_extents(graph_.view(node)).experts;
    if (experts == 1) return 1;  // its rows are split
    base::require(experts % parts == 0, "'", at->first, "' has ", experts, " experts, which ", parts,
                  " ranks do not divide");
    return parts;
  }

  bool reads_parts(const Node& node) const {
    return std::any_of(node.in.begin(), node.in.end(), [&](ValueId id) { return made_.contains(id); });
  }
  ValueId in_parts(ValueId id) const {
    const auto at = made_.find(id);
    return at == made_.end() ? id : at->second;
  }
  void need_unread(ValueId id, const std::string& reader) const {
    if (made_.contains(id))
      base::fail_unsupported("experts cannot be shared out: ", reader,
                             " reads what single choices give; leave ep out, or give the weights a rule");
  }

  void split(const Node& node, const ops::ExpertPlaces& at, int64_t parts) {
    const bool sums = at.shares < node.in.size();
    std::vector<ValueId> in = node.in;
    for (size_t i = 0; i < in.size(); ++i) {
      if (!sums || i != ops::kExX) need_unread(in[i], base::concat("'", node.from, "'"));
    }
    if (sums && !made_.contains(in[ops::kExX]))
      base::fail_unsupported("experts cannot be shared out: '", node.from,
                             "' sums over what no products by the same experts give");
    in[ops::kExX] = in_parts(in[ops::kExX]);
    ir::Attrs attrs = node.attrs;
    attrs.set("parts", parts);
    const ValueId y = graph_.add1(*node.op, std::move(in), std::move(attrs), node.from);
    if (sums) {
      graph_.replace_uses(node.out[0], y);
    } else {
      made_.emplace(node.out[0], y);
    }
  }

  /// A node element by element: its operands broadcast from the right, so that parts are one more dimension.
  void follow(const Node& node) {
    const bool is_simple = ir::is_elementwise(node.op->schema) && node.out.size() == 1;
    for (size_t i = 0; !is_simple && i < node.in.size(); ++i)
      need_unread(node.in[i], base::concat("'", node.from, "' (", node.op_name(), ")"));
    std::vector<ValueId> in = node.in;
    for (ValueId& id : in) id = in_parts(id);
    made_.emplace(node.out[0], graph_.add1(*node.op, std::move(in), node.attrs, node.from));
  }

  ir::Graph& graph_;
  const std::map<std::string, tensor::Shard>& placed_;
  const tensor::MeshShape& mesh_;
  std::unordered_map<ValueId, ValueId> made_;  ///< values of single choices, in parts
};

}  // namespace

size_t split_experts(ir::Graph& graph, const std::map<std::string, tensor::Shard>& placed,
                     const tensor::MeshShape& mesh) {
  return ExpertSplit(graph, placed, mesh).run();
}

}  // namespace trireme::passes
