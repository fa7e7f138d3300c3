// Walks a graph along one mesh axis and builds the graph of a rank.
#include "passes/partition/partition_walk.h"

#include <unordered_map>

#include "base/error.h"
#include "ops/table.h"
#include "passes/train/train.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::NodeId;
using ir::ValueId;
using tensor::Placement;

class AxisWalk {
 public:
  AxisWalk(const ir::Graph& from, const Partitioning& how, const AxisRank& rank)
      : from_(from),
        how_(how),
        rank_(rank),
        halves_(find_halves(from_)),
        values_(from_, how, rank, halves_),
        wishes_(find_wishes(from_, how, rank)),
        chooser_(from_, values_, wishes_, how.sequence_axis == rank.name) {}

  ir::Graph run() {
    readers_ = from_.uses();
    is_output_.assign(from_.values().size(), 0);
    for (ValueId id : from_.outputs()) is_output_[index(id)] = 1;
    const size_t nodes = from_.nodes().size();
    for (size_t n = 0; n < nodes; ++n) {
      if (from_.nodes()[n].op != nullptr) visit(n, halves_[n]);
    }
    add_outputs();
    values_.to().sort();
    return std::move(values_.to());
  }

 private:
  static std::vector<Half> find_halves(const ir::Graph& graph) {
    std::vector<Half> halves;
    std::vector<char> is_backward(graph.values().size(), 0);
    for (ValueId id : graph.inputs()) is_backward[index(id)] = graph.value(id).name == kLossWeightInput;
    for (const Node& node : graph.nodes()) {
      bool backward = false;
      for (ValueId id : node.in) backward = backward || (id != ir::kNoValue && is_backward[index(id)] != 0);
      for (ValueId id : node.out) {
        if (id != ir::kNoValue) is_backward[index(id)] = backward;
      }
      halves.push_back(backward ? Half::backward : Half::forward);
    }
    return halves;
  }

  void visit(size_t n, Half half) {
    const Node node = from_.nodes()[n];  // a copy, as the graph may grow
    if (node.op_name() == "add" && add_to_sum(node, half)) return;
    const size_t first = from_.nodes().size();
    if (const std::optional<ValueId> simpler = simplify_for_cut(from_, node, values_)) {
      const size_t end = from_.nodes().size();
      for (size_t k = first; k < end; ++k) {
        place_on_other_axes(from_.nodes()[k]);
        visit(k, half);
      }
      values_.alias(node.out[0], *simpler);
      return;
    }
    add_part(node, chooser_.choose(node, half), half);
  }

  /// A sum of a whole (or split) and a partial value that has not been added up yet.
  struct OpenSum {
    ValueId whole, partial;
  };

  /// Sums of several terms: partial terms are added up first and reduced once. A sum of a whole and a partial
  /// term remains open while its next reader adds to it. Returns false for an add that has no such operands.
  bool add_to_sum(const Node& node, Half half) {
    if (from_.type(node.in[0]).shape != from_.type(node.in[1]).shape) return false;
    std::vector<ValueId> whole, partial;
    bool was_open = false;
    for (ValueId id : node.in) {
      const auto open = open_.find(index(id));
      was_open = was_open || open != open_.end();
      if (open != open_.end()) {
        whole.push_back(open->second.whole);
        partial.push_back(open->second.partial);
      } else {
        (values_.made(id).is_partial() ? partial : whole).push_back(id);
      }
    }
    if (whole.empty() || partial.empty() || (!was_open && !is_added_to(node.out[0]))) return false;
    const OpenSum sum{total(whole, half, node.from), total(partial, half, node.from)};
    if (is_added_to(node.out[0])) {
      open_[index(node.out[0])] = sum;
    } else {
      values_.alias(node.out[0], total({sum.whole, sum.partial}, half, node.from));
    }
    return true;
  }

  /// True if the only reader of a value is an add of the same shape.
  bool is_added_to(ValueId id) const {
    if (index(id) >= readers_.size() || readers_[index(id)].size() != 1 || is_output_[index(id)] != 0)
      return false;
    const Node& reader = from_.node(readers_[index(id)][0]);
    return reader.op_name() == "add" && from_.type(reader.in[0]).shape == from_.type(reader.in[1]).shape;
  }

  ValueId total(const std::vector<ValueId>& terms, Half half, const std::string& from) {
    if (terms.size() == 1) return terms[0];
    const ir::OpDef& add = *ops::table().find("add");
    const ValueId sum = from_.add1(add, terms, {}, from);
    const Node node = *from_.producer(sum);
    place_on_other_axes(node);
    add_part(node, chooser_.choose(node, half), half);
    return sum;
  }

  /// Gives the results of a simplified node placements on the axes that were cut before this one.
  void place_on_other_axes(const Node& node) {
    const ir::NodeView view = from_.view(node);
    const ir::CutRule rule = cut_rule_of(node.op->schema, view);
    for (size_t a = rank_.axis + 1; a < how_.mesh.axes().size(); ++a) {
      if (is_untouched(how_, how_.mesh.axes()[a])) continue;
      std::vector<Placement> in;
      for (ValueId id : node.in) in.push_back(id == ir::kNoValue ? Placement{} : from_.value(id).shard.on(a));
      const CutMatcher::Result result = match_cut(rule, view, in);
      base::check(result.refusal.empty(), "node '", node.from, "' (", node.op_name(), "): ", result.refusal);
      for (size_t i = 0; i < node.out.size(); ++i) from_.value(node.out[i]).shard.set(a, result.out[i]);
    }
  }

  /// Adds this rank's part of the node, with operands converted to the placements of `fit`.
  void add_part(const Node& node, const CutFit& fit, Half half) {
    const ir::NodeView view = from_.view(node);
    const PartNode part = part_node(node.op->schema, view, fit, rank_);
    std::vector<ValueId> in;
    for (size_t i = 0; i < node.in.size(); ++i) {
      in.push_back(ir::kNoValue);
      if (node.in[i] == ir::kNoValue) continue;
      const std::optional<ValueId> other = changed_constant(i, part);
      in[i] = other ? *other : values_.to_placement(node.in[i], fit.in[i], half, node.from);
    }
    const std::vector<ValueId> out =
        values_.to().add(*node.op, std::move(in), part.attrs, node.out.size(), node.from);
    for (size_t i = 0; i < out.size(); ++i) {
      if (node.out[i] == ir::kNoValue) {
        drop_result(out[i]);
        continue;
      }
      check_part(node, i, fit.out[i], out[i]);
      values_.define(node.out[i], fit.out[i], out[i]);
    }
  }

  /// The new constant for operand `i`, if the part needs another one.
  std::optional<ValueId> changed_constant(size_t i, const PartNode& part) {
    for (const auto& [at, value] : part.constants) {
      if (at == i) return values_.to().add_constant(value);
    }
    return std::nullopt;
  }

  void drop_result(ValueId local) {
    const ir::Value& v = values_.to().value(local);
    values_.to().node(v.producer).out[v.producer_index] = ir::kNoValue;
  }

  void check_part(const Node& node, size_t i, const Placement& p, ValueId local) {
    const tensor::Dims want = part_dims(from_.type(node.out[i]).shape.to_dims(), p, rank_);
    const tensor::Shape& got = values_.to().type(local).shape;
    base::check(got == tensor::Shape::of(want), "node '", node.from, "' (", node.op_name(), ") cut as ",
                p.to_string(), " makes ", got.to_string(), ", a rank's part is ", tensor::to_string(want));
  }

  void add_outputs() {
    for (size_t i = 0; i < from_.outputs().size(); ++i) {
      const std::string& name = from_.output_names()[i];
      const auto at = how_.outputs.find(name);
      const Placement wanted = at == how_.outputs.end() ? Placement{} : at->second.on(rank_.axis);
      const ValueId id = from_.outputs()[i];
      const Node* producer = from_.producer(id);
      const Half half = producer == nullptr ? Half::forward : halves_[index(from_.value(id).producer)];
      const bool stays = wanted.is_partial() && !values_.made(id).is_partial();
      values_.to().add_output(values_.to_placement(id, stays ? Placement{} : wanted, half, name), name);
    }
  }

  ir::Graph from_;  ///< grows when nodes are simplified
  const Partitioning& how_;
  const AxisRank& rank_;
  std::vector<Half> halves_;  ///< by node
  AxisValues values_;
  Wishes wishes_;
  NodeChooser chooser_;
  std::vector<std::vector<ir::NodeId>> readers_;
  std::vector<char> is_output_;
  std::unordered_map<size_t, OpenSum> open_;  ///< by value
};

}  // namespace

ir::Graph partition_axis(const ir::Graph& from, const Partitioning& how, const AxisRank& rank) {
  return AxisWalk(from, how, rank).run();
}

}  // namespace trireme::passes
