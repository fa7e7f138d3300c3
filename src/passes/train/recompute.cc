// Trades time for memory: recomputes activations for the backward pass instead of keeping them.
#include "passes/train/recompute.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "passes/rewriter.h"
#include "passes/train/train.h"

namespace trireme::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

bool is_small(const Graph& g, ValueId id, int64_t largest) {
  return tensor::bytes_of(g.type(id)) * 64 < largest;
}

/// The step graph as recomputation needs it: which nodes are forward, and the readers of values.
class Activations {
 public:
  explicit Activations(const Graph& g)
      : graph(g), readers(g.uses()), forward(g.nodes().size(), 0), depends_(g.values().size(), 0) {
    find_dependents();
    find_forward();
    find_fed();
    for (size_t n = 0; n < g.nodes().size(); ++n) {
      for (ValueId id : g.nodes()[n].out) {
        if (makes_activations(n) && id != ir::kNoValue)
          largest = std::max(largest, tensor::bytes_of(g.type(id)));
      }
    }
  }

  /// True for forward nodes that depend on data. Values computed from weights alone are not activations:
  /// weights gathered from ranks would change the cuts, and thus the kernels that products are fused into,
  /// whose results differ in bits.
  bool makes_activations(size_t n) const { return forward[n] != 0 && fed_[n] != 0; }

  /// The position of the last forward node that reads `id` or a view of it, or -1.
  int64_t last_forward_read(ValueId id) const {
    int64_t last = -1;
    for (NodeId n : readers[index(id)]) {
      if (!forward[index(n)]) continue;
      last = std::max(last, static_cast<int64_t>(index(n)));
    }
    return last;
  }
  bool read_backward(ValueId id) const {
    return std::any_of(readers[index(id)].begin(), readers[index(id)].end(), [&](NodeId n) {
      if (!forward[index(n)]) return true;
      const Node& reader = graph.node(n);
      return reader.op->schema.is_view && read_backward(reader.out[0]);
    });
  }

  const Graph& graph;
  std::vector<std::vector<NodeId>> readers;
  std::vector<char> forward;  ///< by node
  int64_t largest = 0;        ///< bytes of the largest activation

 private:
  /// Finds values that depend on the weight of the loss or on the learning rate.
  void find_dependents() {
    for (ValueId id : graph.inputs()) {
      const std::string& name = graph.value(id).name;
      depends_[index(id)] = name == kLossWeightInput || name == kLrInput || is_crossing_gradient(name);
    }
    for (const Node& node : graph.nodes()) {
      const bool depends = std::any_of(node.in.begin(), node.in.end(), [&](ValueId id) {
        return id != ir::kNoValue && depends_[index(id)] != 0;
      });
      for (ValueId id : node.out) {
        if (id != ir::kNoValue) depends_[index(id)] = depends;
      }
    }
  }

  /// Forward nodes: those that the loss and other results independent of its weight need. (A slope like 1 -
  /// y^2 is computed from forward values, but for the backward pass only.)
  void find_forward() {
    std::vector<char> wanted(graph.values().size(), 0);
    for (ValueId id : graph.outputs()) wanted[index(id)] = depends_[index(id)] == 0;
    for (size_t n = graph.nodes().size(); n-- > 0;) {
      const Node& node = graph.nodes()[n];
      bool is_read = node.op->schema.updates_state();
      bool depends = false;
      for (ValueId id : node.out) is_read |= id != ir::kNoValue && wanted[index(id)] != 0;
      for (ValueId id : node.in) depends |= id != ir::kNoValue && depends_[index(id)] != 0;
      if (!is_read || depends) continue;
      forward[n] = !node.op->schema.updates_state();
      for (ValueId id : node.in) {
        if (id != ir::kNoValue) wanted[index(id)] = 1;
      }
    }
  }

  /// Finds nodes that depend on the inputs of the step.
  void find_fed() {
    std::vector<char> values(graph.values().size(), 0);
    for (ValueId id : graph.inputs()) values[index(id)] = 1;
    for (const Node& node : graph.nodes()) {
      fed_.push_back(std::any_of(node.in.begin(), node.in.end(),
                                 [&](ValueId id) { return id != ir::kNoValue && values[index(id)] != 0; }));
      for (ValueId id : node.out) {
        if (id != ir::kNoValue) values[index(id)] = fed_.back();
      }
    }
  }

  std::vector<char> depends_;  ///< by value
  std::vector<char> fed_;      ///< by node
};

/// A position after forward node `node` that only one large value crosses.
struct Cut {
  size_t node;
  ValueId value;
};

std::vector<Cut> find_cuts(const Activations& a) {
  const size_t count = a.graph.nodes().size();
  std::vector<std::vector<ValueId>> dies(count);
  std::vector<ValueId> live;
  std::vector<Cut> cuts;
  for (size_t n = 0; n < count; ++n) {
    if (!a.makes_activations(n)) continue;
    std::erase_if(live, [&](ValueId id) { return a.last_forward_read(id) <= static_cast<int64_t>(n); });
    for (ValueId id : a.graph.nodes()[n].out) {
      if (id == ir::kNoValue || is_small(a.graph, id, a.largest)) continue;
      if (a.last_forward_read(id) > static_cast<int64_t>(n)) live.push_back(id);
    }
    const bool moves = live.size() == 1 && (cuts.empty() || cuts.back().value != live[0]);
    if (moves) cuts.push_back({n, live[0]});
  }
  return cuts;
}

int64_t saved_bytes(const Activations& a, size_t n) {
  if (!a.makes_activations(n) || a.graph.nodes()[n].op->schema.is_view) return 0;
  int64_t bytes = 0;
  for (ValueId id : a.graph.nodes()[n].out) {
    if (id != ir::kNoValue && a.read_backward(id)) bytes += tensor::bytes_of(a.graph.type(id));
  }
  return bytes;
}

/// Takes every `stride`-th cut.
std::vector<Cut> choose_cuts(const std::vector<Cut>& cuts, size_t segments) {
  std::vector<Cut> chosen;
  for (size_t s = 1; s < segments; ++s) {
    const size_t at = cuts.size() * s / segments;
    if (chosen.empty() || chosen.back().node != cuts[at].node) chosen.push_back(cuts[at]);
  }
  return chosen;
}

/// Bytes kept at the chosen cuts plus those of the largest segment, which are alive while it runs backward.
int64_t peak_bytes(const Activations& a, const std::vector<Cut>& chosen) {
  int64_t kept = 0, segment = 0, worst = 0;
  size_t next = 0;
  for (size_t n = 0; n < a.graph.nodes().size(); ++n) {
    segment += saved_bytes(a, n);
    if (next < chosen.size() && chosen[next].node == n) {
      kept += tensor::bytes_of(a.graph.type(chosen[next].value));
      worst = std::max(worst, segment);
      segment = 0;
      ++next;
    }
  }
  return kept + std::max(worst, segment);
}

std::vector<Cut> best_cuts(const Activations& a, const std::vector<Cut>& cuts) {
  std::vector<Cut> best;
  int64_t least = peak_bytes(a, {});
  for (size_t segments = 2; segments <= cuts.size() + 1; ++segments) {
    std::vector<Cut> chosen = choose_cuts(cuts, segments);
    const int64_t bytes = peak_bytes(a, chosen);
    if (bytes < least) least = bytes, best = std::move(chosen);
  }
  return best;
}

/// True for nodes whose results `selective` keeps: recomputing them costs as much as the forward pass, or
/// frees no memory.
bool is_kept(const Node& node) { return ir::has_products(node.op->schema) || node.op->schema.keeps_results; }

/// What each node is called in a plan.
std::vector<std::string> names_in_plan(const Graph& graph) {
  std::unordered_map<std::string, size_t> before;
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) {
    std::string name = base::concat(node.op == nullptr ? "" : node.op->schema.name, " ", node.from);
    const size_t earlier = before[name]++;
    names.push_back(base::concat(name, " ", earlier));
  }
  return names;
}

/// Sums up a plan that computes the nodes of `again` twice.
void take(const Activations& a, const std::vector<char>& again, RecomputePlan& plan) {
  const std::vector<std::string> names = names_in_plan(a.graph);
  for (size_t n = 0; n < a.graph.nodes().size(); ++n) {
    const Node& node = a.graph.nodes()[n];
    if (again[n]) {
      plan.again.push_back(names[n]);
      plan.flop += ir::cost_of(node.op->schema, a.graph.view(node)).flop;
    } else {
      plan.kept_bytes += saved_bytes(a, n);
    }
  }
}

/// Clones each planned node once, and lets backward nodes read the clones.
class Cloner {
 public:
  Cloner(Graph& graph, std::vector<char> planned)
      : graph_(graph), planned_(std::move(planned)), twin_(graph.values().size(), ir::kNoValue) {}

  size_t run(const std::vector<char>& forward) {
    const size_t count = forward.size();
    for (size_t n = 0; n < count; ++n) {
      if (forward[n]) continue;
      for (size_t i = 0; i < graph_.nodes()[n].in.size(); ++i) {
        const ValueId id = graph_.nodes()[n].in[i];
        const ValueId twin = again(id);
        if (twin != id) graph_.set_operand(NodeId(static_cast<uint32_t>(n)), i, twin);
      }
    }
    return clones_;
  }

 private:
  bool is_planned(ValueId id) const {
    if (id == ir::kNoValue || graph_.value(id).producer == ir::kNoNode) return false;
    const size_t n = index(graph_.value(id).producer);
    return n < planned_.size() && planned_[n] != 0;
  }

  /// The clone of `id`, or `id` itself if it is kept. Uses no recursion, since networks are deep.
  ValueId again(ValueId id) {
    if (!is_planned(id)) return id;
    std::vector<ValueId> stack{id};
    while (!stack.empty()) {
      const ValueId top = stack.back();
      if (twin_[index(top)] != ir::kNoValue) {
        stack.pop_back();
        continue;
      }
      const Node node = *graph_.producer(top);
      const size_t before = stack.size();
      for (ValueId in : node.in) {
        if (is_planned(in) && twin_[index(in)] == ir::kNoValue) stack.push_back(in);
      }
      if (stack.size() == before) clone(node);
    }
    return twin_[index(id)];
  }

  void clone(const Node& node) {
    std::vector<ValueId> in;
    for (ValueId id : node.in) in.push_back(is_planned(id) ? twin_[index(id)] : id);
    const auto out = graph_.add(*node.op, std::move(in), node.attrs, node.out.size(), node.from);
    leave_out(graph_, node, out);
    for (size_t i = 0; i < node.out.size(); ++i) {
      if (node.out[i] != ir::kNoValue) twin_[index(node.out[i])] = out[i];
    }
    ++clones_;
  }

  Graph& graph_;
  const std::vector<char> planned_;  ///< by node of the original graph
  std::vector<ValueId> twin_;        ///< by value of the original graph
  size_t clones_ = 0;
};

}  // namespace

size_t count_cuts(const Graph& graph) { return find_cuts(Activations(graph)).size(); }

RecomputePlan plan_recompute(const Graph& graph, RecomputeMode mode, size_t segments) {
  const Activations a(graph);
  std::vector<char> again(graph.nodes().size(), 0);
  if (mode == RecomputeMode::selective) {
    for (size_t n = 0; n < graph.nodes().size(); ++n) again[n] = a.forward[n] && !is_kept(graph.nodes()[n]);
  }
  if (mode == RecomputeMode::full) {
    const std::vector<Cut> cuts = find_cuts(a);
    const std::vector<Cut> chosen = segments == 0 ? best_cuts(a, cuts) : choose_cuts(cuts, segments);
    // The backward pass of the last segment follows its forward pass at once, so keeping it costs nothing.
    const size_t end = chosen.empty() ? 0 : chosen.back().node + 1;
    for (size_t n = 0; n < end; ++n) again[n] = a.forward[n];
    for (const Cut& cut : chosen) again[index(graph.value(cut.value).producer)] = 0;
  }
  RecomputePlan plan{.mode = mode};
  take(a, again, plan);
  return plan;
}

size_t recompute(Graph& graph, const RecomputePlan& plan) {
  if (plan.mode == RecomputeMode::none) return 0;
  const std::unordered_set<std::string> again(plan.again.begin(), plan.again.end());
  std::vector<char> planned;
  for (const std::string& name : names_in_plan(graph)) planned.push_back(again.contains(name));
  const std::vector<char> forward = Activations(graph).forward;
  return Cloner(graph, std::move(planned)).run(forward);
}

}  // namespace trireme::passes
