// Opens the branches of `if` nodes whose conditions are known, and names weights that other subgraphs hold.
#include "lower/known_branches.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <variant>

#include "ops/table.h"
#include "passes/cleanup/fold.h"
#include "passes/rewriter.h"

namespace trireme::lower {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

/// Params by the address of their content.
using ByContent = std::unordered_map<const std::byte*, ValueId>;

ByContent params_by_content(const Graph& graph) {
  ByContent params;
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const ir::Value& v = graph.values()[i];
    if (v.kind == ir::ValueKind::param && v.data.defined())
      params.emplace(v.data.raw(), ValueId(static_cast<uint32_t>(i)));
  }
  return params;
}

/// The param outside that a value of a subgraph has the content of.
std::optional<ValueId> same_param(const Graph& graph, const ByContent& params, const ir::Value& inner) {
  const auto at = inner.data.defined() ? params.find(inner.data.raw()) : params.end();
  const bool is_same = at != params.end() && graph.type(at->second) == inner.type;
  return is_same ? std::optional(at->second) : std::nullopt;
}

/// Whether a subgraph's value is a weight by what importers make params of: a float tensor with a name that
/// has a dimension. Literals have no names there.
bool is_own_weight(const ir::Value& inner) {
  return inner.data.defined() && !inner.name.empty() && tensor::is_float(inner.type.dtype) &&
         inner.data.rank() > 0;
}

class BranchOpener {
 public:
  explicit BranchOpener(Graph& graph) : graph_(graph), params_(params_by_content(graph)) {
    for (const ir::Value& v : graph.values()) names_.insert(v.name);
  }

  /// Walks the nodes once and types them anew behind the branches that it opens. Returns how many these were.
  size_t walk() {
    size_t opened = 0;
    const size_t count = graph_.nodes().size();
    for (size_t n = 0; n < count; ++n) {
      const auto id = ir::NodeId(static_cast<uint32_t>(n));
      if (graph_.node(id).op == nullptr) continue;
      graph_.infer_node(id);
      if (const std::optional<bool> taken = known_condition(graph_.node(id))) {
        open(id, *taken);
        ++opened;
      } else if (is_small_arithmetic(graph_.node(id))) {
        passes::fold_node(graph_, id, kMostBytes, pool_);
      }
    }
    graph_.sort();
    if (opened > 0) params_ = params_by_content(graph_);  // sort() gave new ids
    return opened;
  }

 private:
  static constexpr int64_t kMostBytes = 4096;  ///< of a constant that is computed here

  std::optional<bool> known_condition(const Node& node) const {
    if (node.op_name() != "if") return std::nullopt;
    const tensor::Tensor* condition = graph_.known(node.in[0]);
    if (condition == nullptr || condition->elements() != 1) return std::nullopt;
    return condition->to_doubles()[0] != 0;
  }

  /// Sizes and scales. What is computed of params changes with them.
  bool is_small_arithmetic(const Node& node) const {
    for (ValueId id : node.in) {
      if (id != ir::kNoValue && graph_.value(id).kind == ir::ValueKind::param) return false;
    }
    return std::all_of(node.out.begin(), node.out.end(), [&](ValueId id) {
      if (id == ir::kNoValue || !tensor::is_float(graph_.type(id).dtype)) return true;
      return graph_.type(id).shape.has_rank() && graph_.type(id).shape.rank() < 2;
    });
  }

  void open(ir::NodeId id, bool taken) {
    const Node node = graph_.node(id);  // a copy, since adding nodes moves the original
    const ir::GraphPtr branch = node.attrs.get_graph(taken ? "then_branch" : "else_branch");
    const std::vector<ValueId> results = add_nodes(*branch, node);
    graph_.erase(id);
    for (size_t i = 0; i < node.out.size(); ++i) {
      if (node.out[i] == ir::kNoValue) continue;
      ValueId result = results.at(i);
      if (graph_.value(result).kind != ir::ValueKind::computed)
        result = graph_.add1(ops::table().need("identity"), {result}, {}, node.from);
      graph_.value(result).name = std::move(graph_.value(node.out[i]).name);
      graph_.value(node.out[i]).name.clear();
      graph_.replace_uses(node.out[i], result);
    }
  }

  /// Adds the nodes of a branch, whose inputs are the last operands of `node`. Returns its results.
  std::vector<ValueId> add_nodes(const Graph& branch, const Node& node) {
    base::require(branch.inputs().size() < node.in.size(), "if: a branch takes ", branch.inputs().size(),
                  " values of ", node.in.size() - 1);
    std::vector<ValueId> here(branch.values().size(), ir::kNoValue);
    for (size_t i = 0; i < branch.inputs().size(); ++i)
      here[index(branch.inputs()[i])] = node.in[node.in.size() - branch.inputs().size() + i];
    for (size_t i = 0; i < branch.values().size(); ++i) {
      if (branch.values()[i].data.defined()) here[i] = content(branch.values()[i]);
    }
    const auto found = [&](ValueId id) { return id == ir::kNoValue ? id : here[index(id)]; };
    for (const Node& inner : branch.nodes()) {
      if (inner.op == nullptr) continue;
      std::vector<ValueId> in;
      for (ValueId id : inner.in) in.push_back(found(id));
      const auto made = graph_.add(*inner.op, std::move(in), inner.attrs, inner.out.size(), inner.from);
      passes::leave_out(graph_, inner, made);
      for (size_t i = 0; i < made.size(); ++i) {
        if (inner.out[i] != ir::kNoValue) here[index(inner.out[i])] = made[i];
      }
    }
    std::vector<ValueId> results;
    for (ValueId id : branch.outputs()) results.push_back(found(id));
    return results;
  }

  ValueId content(const ir::Value& inner) {
    if (const auto param = same_param(graph_, params_, inner)) return *param;
    if (!is_own_weight(inner)) return graph_.add_constant(inner.data);
    std::string name = inner.name;
    for (size_t k = names_.size(); !names_.insert(name).second; ++k) name = base::concat(inner.name, ".", k);
    return graph_.add_param(std::move(name), inner.data);
  }

  Graph& graph_;
  ByContent params_;
  std::unordered_set<std::string> names_;
  base::ThreadPool pool_{1};
};

/// The name of a weight in a subgraph, or in one inside of it, that is not frozen; empty if there is none.
std::string weight_inside(const Graph& outer, const ByContent& params, const Graph& body,
                          const std::vector<std::string>& freeze) {
  const auto is_frozen = [&](const std::string& name) {
    return std::any_of(freeze.begin(), freeze.end(),
                       [&](const std::string& part) { return name.find(part) != std::string::npos; });
  };
  for (const ir::Value& v : body.values()) {
    const auto param = same_param(outer, params, v);
    if (!param && !is_own_weight(v)) continue;
    const std::string& name = param ? outer.value(*param).name : v.name;
    if (!is_frozen(name)) return name;
  }
  for (const Node& node : body.nodes()) {
    if (node.op == nullptr || !node.op->schema.is_control) continue;
    for (const auto& [attr, value] : node.attrs.items()) {
      const auto* inner = std::get_if<ir::GraphPtr>(&value);
      std::string name = inner == nullptr ? std::string() : weight_inside(outer, params, **inner, freeze);
      if (!name.empty()) return name;
    }
  }
  return {};
}

}  // namespace

size_t open_known_branches(Graph& graph) {
  constexpr int kMostRounds = 64;  // for branches in branches, and conditions that depend on those before
  const auto is_if = [](const Node& node) { return node.op != nullptr && node.op_name() == "if"; };
  if (std::none_of(graph.nodes().begin(), graph.nodes().end(), is_if)) return 0;
  BranchOpener opener(graph);
  size_t all = 0;
  for (int round = 0; round < kMostRounds; ++round) {
    const size_t opened = opener.walk();
    all += opened;
    if (opened == 0) break;
  }
  return all;
}

void refuse_weights_in_bodies(const Graph& graph, const std::vector<std::string>& freeze) {
  const ByContent params = params_by_content(graph);
  for (const Node& node : graph.nodes()) {
    if (node.op == nullptr || !node.op->schema.is_control) continue;
    for (const auto& [attr, value] : node.attrs.items()) {
      const auto* body = std::get_if<ir::GraphPtr>(&value);
      if (body == nullptr) continue;
      const std::string name = weight_inside(graph, params, **body, freeze);
      if (name.empty()) continue;
      base::fail_unsupported("the weight '", name, "' is read inside of node '", node.from, "' (",
                             node.op_name(), "), which runs by data and is not differentiated; a weight ",
                             "that shall stay as it is belongs in model.freeze");
    }
  }
}

}  // namespace trireme::lower
