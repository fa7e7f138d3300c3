// Cuts a model's graph into pipeline parts, adds their gradients, and makes the programs of a part's training
// step.
#include "passes/pipeline/pipeline.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/grad.h"
#include "ops/table.h"
#include "passes/pipeline/pipeline_spine.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

/// Copies selected nodes of a graph into a new one.
class Extract {
 public:
  Extract(const Graph& from, const std::string& name) : from_(from), to_(from.values().size(), ir::kNoValue) {
    graph_.name = name;
    graph_.mesh = from.mesh;
  }

  bool has(ValueId id) const { return to_[index(id)] != ir::kNoValue; }
  ValueId at(ValueId id) const { return to_[index(id)]; }
  /// Makes `id` an input with the given name.
  void feed(ValueId id, const std::string& name) {
    const ir::Value& v = from_.value(id);
    to_[index(id)] = graph_.add_input(name, v.type);
    graph_.value(to_[index(id)]).shard = v.shard;
  }
  /// Copies an input, param, state or constant unless it was copied before.
  void source(ValueId id) {
    if (has(id)) return;
    const ir::Value& v = from_.value(id);
    if (v.kind == ir::ValueKind::input) return feed(id, v.name);
    ValueId copy = ir::kNoValue;
    if (v.kind == ir::ValueKind::state) {
      copy = graph_.add_state(v.name, v.type);
    } else if (v.kind == ir::ValueKind::param) {
      copy = graph_.add_param(v.name, v.data);
    } else {
      copy = graph_.add_constant(v.data, v.name);
    }
    graph_.value(copy).shard = v.shard;
    to_[index(id)] = copy;
  }
  /// Copies a node whose operands have been copied.
  void node(const Node& n) {
    std::vector<ValueId> in;
    for (ValueId id : n.in) in.push_back(id == ir::kNoValue ? id : at(id));
    const std::vector<ValueId> out = graph_.add(*n.op, std::move(in), n.attrs, n.out.size(), n.from);
    leave_out(graph_, n, out);
    for (size_t i = 0; i < out.size(); ++i) {
      if (n.out[i] == ir::kNoValue) continue;
      const ir::Value& v = from_.value(n.out[i]);
      graph_.value(out[i]).name = v.name;
      graph_.value(out[i]).shard = v.shard;
      to_[index(n.out[i])] = out[i];
    }
  }
  Graph& graph() { return graph_; }

 private:
  const Graph& from_;
  Graph graph_;
  std::vector<ValueId> to_;  ///< by value of from_
};

/// The last part that reads each activation, by value; the last part of all reads the outputs.
std::vector<size_t> last_readers(const Spine& spine, const std::vector<size_t>& part, size_t parts) {
  std::vector<size_t> last(spine.graph.values().size(), 0);
  for (size_t n = 0; n < part.size(); ++n) {
    if (part[n] == Spine::kFloating) continue;
    for (ValueId id : spine.graph.nodes()[n].in) {
      if (id != ir::kNoValue) last[index(id)] = std::max(last[index(id)], part[n]);
    }
  }
  for (ValueId id : spine.graph.outputs()) last[index(id)] = parts - 1;
  return last;
}

/// Activations that exist in part `b` and are read after it, in the order of their producers.
std::vector<ValueId> crossing_values(const Spine& spine, const std::vector<size_t>& part,
                                     const std::vector<size_t>& last, size_t b) {
  std::vector<ValueId> out;
  for (size_t i = 0; i < last.size(); ++i) {
    const auto id = ValueId(static_cast<uint32_t>(i));
    if (last[i] <= b || !spine.is_activation(id)) continue;
    if (part[index(spine.graph.value(id).producer)] <= b) out.push_back(id);
  }
  return out;
}

bool is_float(const Graph& graph, ValueId id) { return tensor::is_float(graph.type(id).dtype); }

ValueId output_called(const Graph& graph, const std::string& name) {
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), name);
  base::check(at != names.end(), "the part has no output '", name, "'");
  return graph.outputs()[static_cast<size_t>(at - names.begin())];
}

ValueId input_called(const Graph& graph, const std::string& name) {
  for (ValueId id : graph.inputs()) {
    if (graph.value(id).name == name) return id;
  }
  base::fail(base::ErrorCode::internal, "the part has no input '", name, "'");
}

}  // namespace

PipelinePart cut_part(const Graph& graph, const PipelineCut& cut, size_t k) {
  const Spine spine(graph);
  const std::vector<size_t> part = spine.part_of_nodes(cut);
  const std::vector<size_t> last = last_readers(spine, part, cut.parts());
  const bool is_last = k + 1 == cut.parts();
  // Both neighbors list the same values in the same order, as both derive the list from the whole graph.
  std::vector<ValueId> in, out;
  if (k > 0) in = crossing_values(spine, part, last, k - 1);
  if (!is_last) out = crossing_values(spine, part, last, k);

  // Walks backward over what is read, so that floating nodes are visited after their readers.
  std::vector<char> wanted(graph.values().size(), 0), taken(part.size(), 0);
  if (is_last) {
    for (ValueId id : graph.outputs()) wanted[index(id)] = 1;
  }
  for (size_t n = part.size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    const bool is_read = std::any_of(node.out.begin(), node.out.end(),
                                     [&](ValueId id) { return id != ir::kNoValue && wanted[index(id)]; });
    taken[n] = part[n] == k || (part[n] == Spine::kFloating && is_read);
    if (!taken[n]) continue;
    for (ValueId id : node.in) {
      if (id != ir::kNoValue) wanted[index(id)] = 1;
    }
  }
  Extract made(graph, base::concat(graph.name, ".part", k));
  PipelinePart result;
  for (ValueId id : graph.inputs()) {
    if (wanted[index(id)]) made.source(id);
  }
  for (size_t i = 0; i < in.size(); ++i) {
    result.in.push_back(crossing_name(k - 1, i));
    made.feed(in[i], result.in.back());
  }
  for (size_t n = 0; n < part.size(); ++n) {
    if (!taken[n]) continue;
    for (ValueId id : graph.nodes()[n].in) {
      if (id != ir::kNoValue && graph.producer(id) == nullptr) made.source(id);
    }
    made.node(graph.nodes()[n]);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    result.out.push_back(crossing_name(k, i));
    made.graph().add_output(made.at(out[i]), result.out.back());
  }
  for (size_t i = 0; is_last && i < graph.outputs().size(); ++i) {
    const ValueId id = graph.outputs()[i];
    if (graph.producer(id) == nullptr) made.source(id);
    made.graph().add_output(made.at(id), graph.output_names()[i]);
  }
  result.graph = std::move(made.graph());
  result.graph.sort();
  return result;
}

std::vector<std::vector<std::string>> weights_of_parts(const Graph& graph, const PipelineCut& cut) {
  std::vector<std::vector<std::string>> names(cut.parts());
  for (size_t k = 0; k < cut.parts(); ++k) {
    const PipelinePart part = cut_part(graph, cut, k);
    for (const ir::Value& v : part.graph.values()) {
      if (v.kind == ir::ValueKind::param || v.kind == ir::ValueKind::state) names[k].push_back(v.name);
    }
  }
  return names;
}

std::vector<ParamGradient> differentiate_part(PipelinePart& part, ValueId loss,
                                              const std::vector<ValueId>& wanted) {
  Graph& graph = part.graph;
  std::vector<ValueId> crossing;  // float inputs
  for (const std::string& name : part.in) {
    const ValueId id = input_called(graph, name);
    if (is_float(graph, id)) crossing.push_back(id);
  }
  std::vector<std::pair<ValueId, ValueId>> seeds;
  if (loss != ir::kNoValue) {
    loss = scalar_loss(graph, loss);
    seeds.emplace_back(loss, need_input(graph, kLossWeightInput, {tensor::DType::f32, tensor::Shape{}}));
  }
  for (const std::string& name : part.out) {
    const ValueId id = output_called(graph, name);
    if (!is_float(graph, id)) continue;
    const ValueId gradient = graph.add_input(crossing_gradient(name), graph.type(id));
    graph.value(gradient).shard = graph.value(id).shard;
    seeds.emplace_back(id, gradient);
  }
  std::vector<char> marked(graph.values().size(), 0);
  for (ValueId id : wanted) marked[index(id)] = 1;
  for (ValueId id : crossing) marked[index(id)] = 1;
  // The gradient from later parts is the first term of the value's gradient, as in the whole graph.
  std::vector<ValueId> grads(graph.values().size(), ir::kNoValue);
  for (const auto& [value, gradient] : seeds) grads[index(value)] = gradient;
  ops::backpropagate(graph, 0, marked, grads);
  for (ValueId id : crossing) {
    ValueId gradient = grads[index(id)];
    // The previous stage waits for this gradient even if it is zero.
    if (gradient == ir::kNoValue) {
      const tensor::Dims dims = graph.type(id).shape.to_dims();
      const ValueId zero = graph.add_constant(tensor::Tensor::zeros(graph.type(id).dtype, {}));
      const ValueId shape = graph.add_constant(
          tensor::Tensor::from<int64_t>({static_cast<int64_t>(dims.size())}, std::span<const int64_t>(dims)));
      gradient = graph.add1(ops::table().need("expand"), {zero, shape});
    }
    graph.add_output(gradient, crossing_gradient(graph.value(id).name));
  }
  std::vector<ParamGradient> out;
  for (ValueId id : wanted) {
    if (grads[index(id)] != ir::kNoValue) out.push_back({id, grads[index(id)]});
  }
  return out;
}

namespace {

/// Decides to which program each node of a differentiated part belongs.
class Phases {
 public:
  enum Phase : uint8_t { kForward, kBackward, kWeights };

  Phases(const PipelinePart& part, bool splits_weights)
      : part_(part), graph_(part.graph), of_node(graph_.nodes().size(), kBackward) {
    for (const std::string& name : part.in) backward_outputs_.insert(crossing_gradient(name));
    find_dependents();
    find_forward();
    if (!splits_weights) return;
    const bool has_crossing = std::any_of(graph_.output_names().begin(), graph_.output_names().end(),
                                          [&](const std::string& name) { return is_backward_output(name); });
    has_crossing ? find_weights() : find_single_uses();
  }

  bool is_backward_output(const std::string& name) const { return backward_outputs_.contains(name); }

 private:
  const PipelinePart& part_;
  const Graph& graph_;
  std::set<std::string> backward_outputs_;
  std::vector<char> depends_;  ///< by value: depends on gradients from later parts

 public:
  std::vector<Phase> of_node;

 private:
  template <class F>
  void for_operands(const Node& node, F&& f) const {
    for (ValueId id : node.in) {
      if (id != ir::kNoValue) f(id);
    }
  }

  void find_dependents() {
    depends_.assign(graph_.values().size(), 0);
    std::set<std::string> seeds{kLossWeightInput};
    for (const std::string& name : part_.out) seeds.insert(crossing_gradient(name));
    for (ValueId id : graph_.inputs()) depends_[index(id)] = seeds.contains(graph_.value(id).name);
    for (const Node& node : graph_.nodes()) {
      char depends = 0;
      for_operands(node, [&](ValueId id) { depends |= depends_[index(id)]; });
      for (ValueId id : node.out) {
        if (id != ir::kNoValue) depends_[index(id)] = depends;
      }
    }
  }

  /// Nodes that results leaving the part and states without gradients need. A slope like 1 - y^2 counts as
  /// backward, although it depends on forward values only.
  void find_forward() {
    std::vector<char> wanted(graph_.values().size(), 0);
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      if (!is_backward_output(graph_.output_names()[i])) wanted[index(graph_.outputs()[i])] = 1;
    }
    for (size_t n = graph_.nodes().size(); n-- > 0;) {
      const Node& node = graph_.nodes()[n];
      bool is_needed = node.op->schema.updates_state(), depends = false;
      for (ValueId id : node.out) is_needed |= id != ir::kNoValue && wanted[index(id)] != 0;
      for_operands(node, [&](ValueId id) { depends |= depends_[index(id)] != 0; });
      if (!is_needed || depends) continue;
      of_node[n] = kForward;
      for_operands(node, [&](ValueId id) { wanted[index(id)] = 1; });
    }
  }

  /// Backward nodes that no gradient leaving the part needs.
  void find_weights() {
    std::vector<char> wanted(graph_.values().size(), 0);
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      if (is_backward_output(graph_.output_names()[i])) wanted[index(graph_.outputs()[i])] = 1;
    }
    for (size_t n = graph_.nodes().size(); n-- > 0;) {
      if (of_node[n] == kForward) continue;
      const Node& node = graph_.nodes()[n];
      const bool is_needed = std::any_of(node.out.begin(), node.out.end(), [&](ValueId id) {
        return id != ir::kNoValue && wanted[index(id)] != 0;
      });
      if (!is_needed) {
        of_node[n] = kWeights;
        continue;
      }
      for_operands(node, [&](ValueId id) { wanted[index(id)] = 1; });
    }
  }

  /// The first part sends no gradient. Nodes that lead to the gradient of only one weight belong to that
  /// weight; those that lead to several are the chain through the layers.
  void find_single_uses() {
    constexpr size_t kNone = ~size_t{0}, kSeveral = kNone - 1;
    std::vector<size_t> leads(graph_.values().size(), kNone);
    const auto merge = [](size_t& to, size_t more) { to = to == kNone || to == more ? more : kSeveral; };
    for (size_t n = graph_.nodes().size(); n-- > 0;) {
      if (of_node[n] == kForward) continue;
      const Node& node = graph_.nodes()[n];
      size_t to = kNone;
      for (ValueId id : node.out) {
        if (id != ir::kNoValue && leads[index(id)] != kNone) merge(to, leads[index(id)]);
      }
      if (node.op->schema.updates_state() || to == kNone) merge(to, n);
      if (to != kSeveral) of_node[n] = kWeights;
      for_operands(node, [&](ValueId id) { merge(leads[index(id)], to); });
    }
  }
};

/// Makes the programs, the last one first, since it determines which values earlier programs must keep.
class Programs {
 public:
  Programs(const Graph& graph, const Phases& phases)
      : graph_(graph), phases_(phases), is_fed_(graph.values().size(), 0) {
    for (ValueId id : graph.inputs()) is_fed_[index(id)] = 1;
    for (const Node& node : graph.nodes()) {
      const bool is_fed = node.op->schema.updates_state() ||
                          std::any_of(node.in.begin(), node.in.end(),
                                      [&](ValueId id) { return id != ir::kNoValue && is_fed_[index(id)]; });
      for (ValueId id : node.out) {
        if (id != ir::kNoValue) is_fed_[index(id)] = is_fed;
      }
    }
  }

  Graph make(Phases::Phase phase, const char* name) {
    Extract made(graph_, base::concat(graph_.name, ".", name));
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      if (phases_.of_node[n] != phase) continue;
      for (ValueId id : graph_.nodes()[n].in) {
        if (id != ir::kNoValue) provide(made, id, phase);
      }
      made.node(graph_.nodes()[n]);
    }
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const bool is_mine =
          phases_.is_backward_output(graph_.output_names()[i]) == (phase != Phases::kForward);
      if (!is_mine || phase == Phases::kWeights) continue;
      provide(made, graph_.outputs()[i], phase);
      made.graph().add_output(made.at(graph_.outputs()[i]), graph_.output_names()[i]);
    }
    for (ValueId id : order_) {
      if (phase_of(id) == phase) made.graph().add_output(made.at(id), names_.at(id));
    }
    Graph graph = std::move(made.graph());
    graph.sort();
    return graph;
  }

 private:
  Phases::Phase phase_of(ValueId id) const { return phases_.of_node[index(graph_.value(id).producer)]; }

  /// Makes `id` available in the program: copies a source, recomputes a view or a form of weights, or takes
  /// it from an earlier program that keeps it.
  void provide(Extract& made, ValueId id, Phases::Phase phase) {
    if (made.has(id)) return;
    const Node* producer = graph_.producer(id);
    if (producer == nullptr) return made.source(id);
    base::check(phase_of(id) < phase, "a pipeline program reads what a later one computes, of node '",
                producer->from, "'");
    if (producer->op->schema.is_view || !is_fed_[index(id)]) {
      for (ValueId operand : producer->in) {
        if (operand != ir::kNoValue) provide(made, operand, phase);
      }
      return made.node(*producer);
    }
    auto [at, is_new] = names_.emplace(id, "");
    if (is_new) {
      const bool is_kept = phase_of(id) == Phases::kForward;
      at->second = base::concat(is_kept ? "kept." : "late.", is_kept ? kept_++ : late_++);
      order_.push_back(id);
    }
    made.feed(id, at->second);
  }

  const Graph& graph_;
  const Phases& phases_;
  std::map<ValueId, std::string> names_;
  std::vector<ValueId> order_;
  std::vector<char> is_fed_;  ///< by value: depends on inputs or on updates of states
  size_t kept_ = 0, late_ = 0;
};

}  // namespace

PipelinePrograms split_part(const PipelinePart& part, bool splits_weights) {
  const Phases phases(part, splits_weights);
  Programs programs(part.graph, phases);
  PipelinePrograms out;
  // In reverse order: each program determines what earlier ones must keep for it.
  out.weights = programs.make(Phases::kWeights, "weights");
  out.backward = programs.make(Phases::kBackward, "backward");
  out.forward = programs.make(Phases::kForward, "forward");
  return out;
}

}  // namespace trireme::passes
