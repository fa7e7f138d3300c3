// Follows an index through a graph: gives it an extent unrelated to all others, infers types node by node,
// and asks each node's cut rule along which dimensions its results have the index.
#include "passes/independence/independence.h"

#include <algorithm>
#include <numeric>

#include "ops/counts.h"
#include "passes/cleanup/fold.h"
#include "passes/independence/index_rule.h"
#include "passes/independence/numbered_rows.h"
#include "passes/partition/cut_match.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::NodeId;
using ir::ValueId;
using ops::Count;
using ops::Counts;
using Kind = IndexUse::Kind;

/// A number that is divisible by common divisors, so that divisions of extents are exact, and by a prime that
/// divides no extent of the graph: an extent that this number divides belongs to the index.
int64_t entries_for(const ir::Graph& graph, const IndexedInputs& inputs) {
  std::vector<int64_t> extents;
  for (const tensor::Dims& dims : inputs.shapes) extents.insert(extents.end(), dims.begin(), dims.end());
  for (const ir::Value& v : graph.values()) {
    if (!v.type.shape.has_rank()) continue;
    for (const tensor::Dim& d : v.type.shape.dims()) {
      if (d.is_static()) extents.push_back(d.value());
    }
  }
  for (const int64_t prime : {1009, 1013, 1019, 1021, 1031}) {
    const bool is_free =
        std::none_of(extents.begin(), extents.end(), [&](int64_t e) { return e > 0 && e % prime == 0; });
    if (is_free) return 5040 * prime;
  }
  base::fail_unsupported("the extents of '", graph.name, "' leave no number of rows to tell them apart");
}

class IndexWalk {
 public:
  IndexWalk(const ir::Graph& graph, const IndexedInputs& inputs)
      : graph_(graph), inputs_(inputs), n_(entries_for(graph, inputs)), uses_(graph.values().size()) {}

  std::vector<IndexUse> run() {
    const size_t values = graph_.values().size(), nodes = graph_.nodes().size();
    bind();
    for (size_t i = 0; i < nodes; ++i) visit(NodeId(static_cast<uint32_t>(i)));
    uses_.resize(values);
    return std::move(uses_);
  }

 private:
  /// Constants up to this size are computed along the way: they are shapes.
  static constexpr int64_t kMaxBytes = 4096;

  void bind() {
    base::check(
        inputs_.shapes.size() == graph_.inputs().size() && inputs_.dims.size() == graph_.inputs().size(),
        "a shape for each input");
    for (size_t i = 0; i < inputs_.shapes.size(); ++i) {
      tensor::Dims dims = inputs_.shapes[i];
      const ValueId id = graph_.inputs()[i];
      if (inputs_.dims[i]) {
        dims.at(*inputs_.dims[i]) = n_;
        use(id) = {Kind::along, {*inputs_.dims[i]}};
      }
      graph_.value(id).type.shape = tensor::Shape::of(dims);
    }
  }

  IndexUse& use(ValueId id) { return uses_[ir::index(id)]; }

  void visit(NodeId id) {
    const Node node = graph_.node(id);
    if (node.op == nullptr) return;
    graph_.infer_node(id);
    const std::vector<IndexUse> results = uses_of(node);
    const std::vector<Counts> counts = counts_of(node, results);
    for (size_t i = 0; i < node.out.size(); ++i) {
      if (node.out[i] != ir::kNoValue) set(node.out[i], results[i], counts[i]);
    }
    if (node.out.size() == 1 && node.out[0] != ir::kNoValue) numbers_.note(node, elements_of(node));
    fold(id, node);
  }

  void set(ValueId id, const IndexUse& what, const Counts& counts) {
    if (uses_.size() <= ir::index(id)) uses_.resize(ir::index(id) + 1);
    const auto given = inputs_.given.find(id);
    use(id) = given == inputs_.given.end() ? what : given->second;
    if (use(id).kind != Kind::counts) return;
    if (ops::are_plain(counts))
      use(id) = {};
    else
      counts_[id] = counts;
  }

  /// The new constants depend on the index as the results that they replace.
  void fold(NodeId id, const Node& node) {
    size_t next = graph_.values().size();
    if (!fold_node(graph_, id, kMaxBytes, pool_)) return;
    uses_.resize(graph_.values().size());
    for (const ValueId out : node.out) {
      if (out == ir::kNoValue) continue;
      const auto made = ValueId(static_cast<uint32_t>(next++));
      use(made) = use(out);
      if (const auto at = counts_.find(out); at != counts_.end()) counts_[made] = Counts(at->second);
    }
  }

  /// Nodes that draw random numbers have no rule: a part does not know which of the numbers are its own.
  bool draws(const Node& node) {
    const ir::NodeView view = graph_.view(node);
    const auto is_open = [](const tensor::TensorType& t) { return !t.shape.is_static(); };
    if (std::any_of(view.in.begin(), view.in.end(), is_open) ||
        std::any_of(view.out.begin(), view.out.end(), is_open))
      return true;
    return cut_rule_of(node.op->schema, view).notation.empty();
  }

  bool any_operand(const Node& node, Kind kind) {
    return std::any_of(node.in.begin(), node.in.end(),
                       [&](ValueId id) { return id != ir::kNoValue && use(id).kind == kind; });
  }

  static std::vector<IndexUse> all(const Node& node, IndexUse what) {
    return std::vector<IndexUse>(node.out.size(), std::move(what));
  }
  static std::string named(const Node& node, const std::string& why) {
    const std::string name = node.from.empty() ? "" : base::concat("'", node.from, "' ");
    return base::concat(name, "(", node.op_name(), "): ", why);
  }
  static std::vector<IndexUse> mixed(const Node& node, const std::string& why) {
    return all(node, {Kind::mixed, {}, named(node, why)});
  }

  std::vector<IndexUse> uses_of(const Node& node) {
    const ir::OpSchema& op = node.op->schema;
    for (const ValueId id : node.in) {
      if (id != ir::kNoValue && use(id).kind == Kind::mixed) return all(node, use(id));
    }
    if (op.is_random && draws(node)) return mixed(node, "draws numbers for the batch as a whole");
    if (op.is_control) return mixed(node, "runs subgraphs, which are not looked into");
    if (op.is_collective) return mixed(node, "meets other ranks");
    if (reads_extents(node)) return all(node, {Kind::counts});
    const bool has_numbers = any_operand(node, Kind::numbered);
    const bool has_rows = has_numbers || any_operand(node, Kind::along);
    const bool has_counts = any_operand(node, Kind::counts);
    if (!has_rows && !has_counts) return all(node, {Kind::apart});
    if (op.updates_state()) return mixed(node, "writes state that all rows share");
    for (const ValueId id : node.out) {
      if (id != ir::kNoValue && !graph_.type(id).shape.is_static())
        return mixed(node, "the extents of its result depend on data");
    }
    if (!has_rows && are_known(node)) return all(node, {Kind::counts});
    if (!has_rows) {
      if (const auto repeated = ops::repeated_for_rows(*node.op, graph_.view(node), elements_of(node)))
        return all(node, {Kind::along, {.dim = repeated->dim, .inner = repeated->each_row}});
      if (const auto place = numbers_.counted(node, elements_of(node)))
        return all(node, {Kind::numbered, *place, named(node, "its result depends on the place of a row")});
    }
    return has_numbers ? by_numbers(node) : by_rule(node);
  }

  /// Results that depend on row numbers depend on the index, unless each row looks up its own entries.
  std::vector<IndexUse> by_numbers(const Node& node) {
    if (const auto own = numbers_.looks_up_own(node)) return all(node, {Kind::along, *own});
    const auto numbered = std::find_if(node.in.begin(), node.in.end(), [&](ValueId id) {
      return id != ir::kNoValue && use(id).kind == Kind::numbered;
    });
    std::vector<IndexUse> out = by_rule(node);
    for (IndexUse& result : out) {
      if (result.kind != Kind::mixed) result = {Kind::numbered, result.place, use(*numbered).why};
    }
    return out;
  }

  /// The results of the node that are numbers of entries.
  std::vector<Counts> counts_of(const Node& node, const std::vector<IndexUse>& results) {
    std::vector<Counts> none(node.out.size());
    if (results.empty() || results[0].kind != Kind::counts) return none;
    const ir::NodeView view = graph_.view(node);
    if (const auto extents = ops::counts_of_extents(*node.op, view, extents_of(node.in[0])))
      return {*extents};
    std::vector<Counts> out = ops::follow_counts(*node.op, view, elements_of(node), pool_);
    out.resize(node.out.size());
    return out;
  }

  bool reads_extents(const Node& node) {
    if (node.in.empty() || node.in[0] == ir::kNoValue || !use(node.in[0]).has_place()) return false;
    return ops::counts_of_extents(*node.op, graph_.view(node), extents_of(node.in[0])).has_value();
  }

  Counts extents_of(ValueId id) {
    Counts out;
    const tensor::Shape& shape = graph_.type(id).shape;
    if (!shape.is_static()) return {Count::any()};
    for (const tensor::Dim& d : shape.dims()) out.push_back({d.value(), 0});
    const IndexUse& what = use(id);
    if (what.has_place()) out[what.place.dim] = {0, what.place.outer * what.place.inner};
    return out;
  }

  std::vector<Counts> elements_of(const Node& node) {
    std::vector<Counts> in;
    for (const ValueId id : node.in) in.push_back(elements_of(id));
    return in;
  }
  Counts elements_of(ValueId id) {
    if (id == ir::kNoValue) return {};
    if (const auto at = counts_.find(id); at != counts_.end()) return at->second;
    const tensor::Tensor* known = graph_.known(id);
    return is_readable(known) ? ops::plain_counts(*known) : Counts{};
  }

  /// True for a constant that is small and has its content: weights may be no more than types.
  static bool is_readable(const tensor::Tensor* known) {
    return known != nullptr && known->bytes() <= kMaxBytes && !tensor::is_absent(*known);
  }

  /// True if the operands are known and small enough to compute with, and the results are small.
  bool are_known(const Node& node) {
    const auto is_small = [&](ValueId id) { return id == ir::kNoValue || is_readable(graph_.known(id)); };
    if (!std::all_of(node.in.begin(), node.in.end(), is_small)) return false;
    return std::all_of(node.out.begin(), node.out.end(), [&](ValueId id) {
      return id == ir::kNoValue || tensor::bytes_of(graph_.type(id)) <= kMaxBytes;
    });
  }

  /// Counts may be read only as extents of the result.
  std::vector<IndexUse> by_rule(const Node& node) {
    IndexRuleInput in{.schema = node.op->schema, .node = graph_.view(node), .entries = n_};
    for (size_t i = 0; i < node.in.size(); ++i) {
      const ValueId id = node.in[i];
      in.places.emplace_back();
      if (id == ir::kNoValue) continue;
      if (use(id).has_place()) in.places.back() = use(id).place;
      if (use(id).kind != Kind::counts) continue;
      if (node.op->schema.shape_operand != i)
        return mixed(node, base::concat("operand ", i, " is a number that follows the number of rows"));
      for (const Count& c : counts_.at(id)) {
        if (!c.is_plain() && !c.is_multiple())
          return mixed(node, "the number of rows is in its extents otherwise than as a factor");
      }
      in.extents = counts_.at(id);
    }
    const IndexRuleResult found = apply_index_rule(in);
    if (!found.refusal.empty()) return mixed(node, found.refusal);
    std::vector<IndexUse> out = all(node, {Kind::apart});
    for (size_t r = 0; r < out.size(); ++r) {
      if (found.places[r]) out[r] = {Kind::along, *found.places[r]};
      if (!found.mixed.empty() && found.mixed[r] && node.out[r] != ir::kNoValue)
        out[r] = mixed(node, base::concat("result ", r, " is made of all rows"))[0];
    }
    return out;
  }

  ir::Graph graph_;
  const IndexedInputs& inputs_;
  const int64_t n_;
  std::vector<IndexUse> uses_;
  std::map<ValueId, Counts> counts_;
  NumberedRows numbers_{graph_, uses_};
  base::ThreadPool pool_{1};
};

}  // namespace

std::vector<IndexUse> follow_index(const ir::Graph& graph, const IndexedInputs& inputs) {
  return IndexWalk(graph, inputs).run();
}

std::string why_rows_mix(const ir::Graph& graph, std::vector<tensor::Dims> shapes) {
  IndexedInputs inputs{.shapes = std::move(shapes), .dims = {}};
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    if (inputs.shapes[i].empty())
      return base::concat("input '", graph.value(graph.inputs()[i]).name, "' has no dimension of rows");
    inputs.dims.emplace_back(0);
  }
  const std::vector<IndexUse> uses = follow_index(graph, inputs);
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const IndexUse& use = uses[ir::index(graph.outputs()[i])];
    if (use.is_along(0)) continue;
    if (!use.why.empty()) return use.why;
    return base::concat("result '", graph.output_names()[i],
                        "' does not have the rows as its outermost dimension");
  }
  return {};
}

}  // namespace trireme::passes
