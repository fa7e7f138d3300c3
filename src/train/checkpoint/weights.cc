// Replaces the content of params with weights of the same name.
#include "train/checkpoint/weights.h"

#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "engine/train/state_parts.h"
#include "model/safetensors.h"
#include "train/checkpoint/checkpoint.h"

namespace trireme::train {

ir::Graph with_weights(ir::Graph graph, const WeightLookup& lookup, size_t* replaced) {
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& value = graph.value(ir::ValueId{static_cast<uint32_t>(i)});
    if (value.kind != ir::ValueKind::param) continue;
    const tensor::Tensor* found = lookup(value.name);
    if (found == nullptr) continue;
    const bool is_half = found->dtype() == tensor::DType::f16 || found->dtype() == tensor::DType::bf16;
    const bool is_widened = value.type.dtype == tensor::DType::f32 && is_half;  // exact
    base::require(
        found->type().shape == value.type.shape && (is_widened || found->dtype() == value.type.dtype),
        "parameter '", value.name, "' is ", value.type.to_string(), ", the weights hold ",
        found->type().to_string());
    value.data = is_widened ? engine::converted(*found, value.type.dtype) : *found;
    if (replaced != nullptr) ++*replaced;
  }
  return graph;
}

void drop_weights(ir::Graph& graph, const engine::TrainSession& session) {
  std::set<std::string> held(session.states().names().begin(), session.states().names().end());
  for (const lower::TrainedParam& p : session.params()) held.insert(p.name);
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& value = graph.value(ir::ValueId{static_cast<uint32_t>(i)});
    if (value.kind == ir::ValueKind::param && held.contains(value.name)) value.data = {};
  }
}

model::NamedTensors frozen_weights(const ir::Graph& graph) {
  constexpr int kLeastBits = 32;  // numbers as models compute in them, not codes of stored weights
  model::NamedTensors frozen;
  for (const ir::Value& value : graph.values()) {
    const bool is_kept = value.kind == ir::ValueKind::param && !value.name.empty() && value.data.defined();
    if (is_kept && value.data.elements() > 0 && tensor::bits_of(value.data.dtype()) >= kLeastBits)
      frozen.emplace_back(value.name, value.data);
  }
  return frozen;
}

WeightLookup weights_of(std::shared_ptr<const CheckpointReader> checkpoint, bool average) {
  auto read = std::make_shared<std::map<std::string, tensor::Tensor>>();
  return
      [checkpoint = std::move(checkpoint), read, average](const std::string& name) -> const tensor::Tensor* {
        const StoredTensor* stored = average ? checkpoint->find(name + ".ema") : nullptr;
        if (stored == nullptr) stored = checkpoint->find(name);
        if (stored == nullptr) return nullptr;
        tensor::Tensor& content = (*read)[stored->name];
        if (!content.defined()) {
          checkpoint->verify(*stored);
          content = checkpoint->read(*stored);
        }
        return &content;
      };
}

namespace {

/// The tensors of a safetensors file.
WeightLookup weights_of_file(const std::string& path) {
  return [file = model::Safetensors::open(path)](const std::string& name) { return file.find(name); };
}

}  // namespace

ir::Graph start_from(ir::Graph graph, const std::string& path, std::string& text) {
  const WeightLookup lookup =
      path.ends_with(".safetensors")
          ? weights_of_file(path)
          : weights_of(std::make_shared<const CheckpointReader>(find_checkpoint(path)), false);
  size_t found = 0, params = 0;
  graph = with_weights(std::move(graph), lookup, &found);
  for (const ir::Value& v : graph.values()) params += v.kind == ir::ValueKind::param;
  base::require(found > 0, "'", path, "' holds no parameter of this model by name");
  text = base::concat(found, " of ", params, " parameters from '", path, "'");
  return graph;
}

}  // namespace trireme::train
