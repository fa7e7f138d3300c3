// Prepares a loss graph for training.
#include "lower/training_form.h"

#include <algorithm>
#include <array>

#include "passes/cleanup/open_experts.h"
#include "passes/rewriter.h"
#include "passes/train/train.h"

namespace trireme::lower {
namespace {

using ir::ValueId;

/// Scalar outputs that a loss graph may have besides the loss.
constexpr std::array<const char*, 2> kCounters{"count", "correct"};

/// The mean and variance operands of batch norms. Throws invalid_argument if two batch norms share one, as in
/// files whose exporter merged tensors with equal values.
std::vector<ValueId> running_statistics(const ir::Graph& graph) {
  std::vector<ValueId> ids;
  for (const ir::Node& node : graph.nodes()) {
    if (node.op_name() != "batch_norm") continue;
    for (ValueId id : {node.in[3], node.in[4]}) {
      base::require(std::find(ids.begin(), ids.end(), id) == ids.end(), "running statistic '",
                    graph.value(id).name, "' of '", node.from,
                    "' belongs to another batch norm too: export the model in training mode, which merges no "
                    "tensors");
      ids.push_back(id);
    }
  }
  return ids;
}

/// Exporters insert identities between tensors of the file and their readers.
void read_params_directly(ir::Graph& graph) {
  passes::Rewriter rw(graph);
  for (bool changes = true; changes;) {
    changes = rw.for_each("identity", [&](ir::NodeId, const ir::Node& node) {
      const bool is_param = graph.value(node.in[0]).kind == ir::ValueKind::param;
      if (!is_param || rw.uses(node.out[0]) == 0) return false;
      rw.replace(node.out[0], node.in[0]);
      return true;
    }) > 0;
  }
  graph.sort();
}

/// Keeps loss and counters as the only outputs, and removes what nothing else needs.
void keep_loss(ir::Graph& graph) {
  std::vector<ValueId> outputs;
  std::vector<std::string> names;
  const auto take = [&](const char* name) {
    const auto& all = graph.output_names();
    const auto at = std::find(all.begin(), all.end(), name);
    if (at == all.end()) return false;
    outputs.push_back(graph.outputs()[static_cast<size_t>(at - all.begin())]);
    names.emplace_back(name);
    return true;
  };
  base::require(take(kLossOutput), "the graph has no output '", kLossOutput, "' to train on");
  for (const char* counter : kCounters) take(counter);
  graph.set_outputs(outputs, names);
  graph.sort();
}

}  // namespace

TrainingForm training_form(ir::Graph loss_graph, const std::vector<std::string>& freeze) {
  TrainingForm form{.graph = std::move(loss_graph), .states = {}, .params = {}};
  ir::Graph& graph = form.graph;
  keep_loss(graph);
  read_params_directly(graph);
  passes::open_expert_products(graph);
  const std::vector<ValueId> statistics = running_statistics(graph);
  const auto is_frozen = [&](const std::string& name) {
    return std::any_of(freeze.begin(), freeze.end(),
                       [&](const std::string& part) { return name.find(part) != std::string::npos; });
  };
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const auto id = ValueId(static_cast<uint32_t>(i));
    const ir::Value& v = graph.value(id);
    if (v.kind != ir::ValueKind::param) continue;
    const bool is_statistic = std::find(statistics.begin(), statistics.end(), id) != statistics.end();
    const tensor::Dims dims = v.type.shape.to_dims();
    // A scalar is a constant of the architecture (a scale, an epsilon). A bias of one output has a dimension.
    const bool is_array = !dims.empty() && tensor::element_count(dims) > 0;
    const bool is_weight = v.type.dtype == tensor::DType::f32 && is_array && !is_frozen(v.name);
    if (!is_statistic && !is_weight) continue;
    base::require(!v.name.empty(), "a parameter of type ", v.type.to_string(), " has no name");
    form.states.push_back(v.name);
    if (!is_statistic) form.params.push_back({v.name, dims});
    graph.make_state(id);
  }
  passes::to_training(graph);
  graph.sort();
  return form;
}

}  // namespace trireme::lower
