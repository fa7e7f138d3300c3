// Prepares a loss graph for training.
#include "lower/training_form.h"

#include <algorithm>
#include <array>

#include "lower/known_branches.h"
#include "ops/elementwise/cast.h"
#include "passes/cleanup/open_experts.h"
#include "passes/rewriter.h"
#include "passes/train/inference_form.h"
#include "passes/train/train.h"

namespace trireme::lower {
namespace {

using ir::ValueId;

/// Scalar outputs that a loss graph may have besides the loss.
constexpr std::array<const char*, 2> kCounters{"count", "correct"};

bool is_frozen(const std::vector<std::string>& freeze, const std::string& name) {
  return std::any_of(freeze.begin(), freeze.end(),
                     [&](const std::string& part) { return name.find(part) != std::string::npos; });
}

/// A scalar is a constant of the architecture (a scale, an epsilon). A bias of one output has a dimension.
bool is_array(const ir::Value& v) {
  const tensor::Dims dims = v.type.shape.to_dims();
  return !dims.empty() && tensor::element_count(dims) > 0;
}

/// The mean and variance operands of batch norms.
struct Statistics {
  std::vector<ValueId> all, running;
  static bool has(const std::vector<ValueId>& ids, ValueId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  }
};

/// Whether training moves the statistics of a batch norm and normalises by those of the batch.
bool moves_statistics(const ir::Graph& graph, const ir::Node& norm) {
  const auto is_param = [&](ValueId id) { return graph.value(id).kind == ir::ValueKind::param; };
  return !passes::is_fixed_norm(norm) && is_param(norm.in[3]) && is_param(norm.in[4]);
}

/// Throws invalid_argument if two batch norms keep running statistics in one tensor, as in files whose
/// exporter merged tensors with equal values.
Statistics statistics_of(const ir::Graph& graph) {
  Statistics found;
  for (const ir::Node& node : graph.nodes()) {
    if (node.op_name() != "batch_norm") continue;
    const bool moves = moves_statistics(graph, node);
    for (ValueId id : {node.in[3], node.in[4]}) {
      base::require(moves ? !Statistics::has(found.all, id) : !Statistics::has(found.running, id),
                    "running statistic '", graph.value(id).name, "' of '", node.from,
                    "' belongs to another batch norm too: export the model in training mode, which merges no "
                    "tensors");
      found.all.push_back(id);
      if (moves) found.running.push_back(id);
    }
  }
  return found;
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

void require_trainable_types(const ir::Graph& graph, const std::vector<std::string>& freeze) {
  for (const ir::Value& v : graph.values()) {
    const bool is_other = tensor::is_float(v.type.dtype) && v.type.dtype != tensor::DType::f32;
    if (v.kind != ir::ValueKind::param || !is_other || !is_array(v) || is_frozen(freeze, v.name)) continue;
    base::fail_unsupported("the weight '", v.name, "' is ", v.type.to_string(),
                           ": training takes weights of f32, f16 and bf16; one that shall stay as it is ",
                           "belongs in model.freeze");
  }
}

void fix_frozen_norms(ir::Graph& graph, const std::vector<std::string>& freeze) {
  const auto names_it = [&](ValueId id) {
    while (const ir::Node* node = graph.producer(id)) {
      if (node->op_name() != "identity") return false;
      id = node->in[0];
    }
    return is_frozen(freeze, graph.value(id).name);
  };
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    ir::Node& node = graph.node(ir::NodeId(static_cast<uint32_t>(n)));
    if (node.op == nullptr || node.op_name() != "batch_norm") continue;
    if (names_it(node.in[3]) && names_it(node.in[4])) passes::fix_norm(node);
  }
}

std::vector<std::string> constant_weights(const ir::Graph& graph, const std::vector<std::string>& freeze) {
  std::vector<char> is_read(graph.values().size(), 0);  // as the operand of a product
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const ir::Node& node = graph.nodes()[n];
    if (node.op == nullptr) continue;
    const ir::OpSchema& op = node.op->schema;
    const auto read = [&](ValueId id) {
      if (id != ir::kNoValue) is_read[ir::index(id)] = 1;
    };
    if (ir::has_products(op)) {
      std::for_each(node.in.begin(), node.in.end(), read);
    } else if (!node.in.empty() && !node.out.empty() && node.out[0] != ir::kNoValue) {
      const bool moves = op.is_view || ops::is_cast(op) || ir::moves_operand(op, 0);
      if (moves && is_read[ir::index(node.out[0])] != 0) read(node.in[0]);
    }
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const ir::Value& v = graph.values()[i];
    const bool is_weight = v.kind == ir::ValueKind::constant && tensor::is_float(v.type.dtype) && is_array(v);
    const bool is_told = !v.name.empty() && !is_frozen(freeze, v.name);
    if (is_weight && is_read[i] != 0 && is_told) names.push_back(v.name);
  }
  return names;
}

TrainingForm training_form(ir::Graph loss_graph, const std::vector<std::string>& freeze) {
  TrainingForm form{.graph = std::move(loss_graph), .states = {}, .params = {}};
  ir::Graph& graph = form.graph;
  keep_loss(graph);
  read_params_directly(graph);
  passes::open_expert_products(graph);
  refuse_weights_in_bodies(graph, freeze);
  require_trainable_types(graph, freeze);
  const Statistics statistics = statistics_of(graph);
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const auto id = ValueId(static_cast<uint32_t>(i));
    const ir::Value& v = graph.value(id);
    if (v.kind != ir::ValueKind::param) continue;
    const bool is_running = Statistics::has(statistics.running, id);
    if (!is_running && Statistics::has(statistics.all, id)) continue;
    const bool is_weight = tensor::is_float(v.type.dtype) && is_array(v) && !is_frozen(freeze, v.name);
    if (!is_running && !is_weight) continue;
    base::require(!v.name.empty(), "a parameter of type ", v.type.to_string(), " has no name");
    form.states.push_back(v.name);
    if (!is_running) form.params.push_back({v.name, v.type.shape.to_dims()});
    graph.make_state(id);
  }
  base::require(!form.params.empty(), "the loss depends on no weight that could be trained: the model has ",
                "none (float tensors with a dimension that a file stores as weights), or model.freeze names ",
                "all of them");
  passes::to_training(graph);
  graph.sort();
  return form;
}

}  // namespace trireme::lower
