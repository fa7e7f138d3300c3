// Cross-encoders: classifiers with one label that score how well two texts match.
#include "model/hf/pair_scores.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/files/file.h"
#include "model/builder.h"
#include "model/hf/checkpoint.h"
#include "model/hf/directory.h"

namespace trireme::model::hf {
namespace {

using base::Json;
using tensor::Shape;

const Json* text_in(const Json& json, std::string_view key) {
  const Json* found = json.is_object() ? json.find(key) : nullptr;
  return found != nullptr && found->is_string() ? found : nullptr;
}

/// The name of the activation, empty for the default; sets `key` to the member that holds the name.
std::string named_activation(const std::string& directory, std::string& key) {
  const Json config = read_config_json(directory);
  key = "config.json: sentence_transformers.activation_fn";
  if (const Json* own = config.find("sentence_transformers")) {
    if (const Json* name = text_in(*own, "activation_fn")) return name->as_string();
  }
  key = "config.json: sbert_ce_default_activation_function";
  if (const Json* name = text_in(config, "sbert_ce_default_activation_function")) return name->as_string();
  key = "config_sentence_transformers.json: activation_fn";
  const Json settings = sentence_settings(directory);
  const Json* name = text_in(settings, "activation_fn");
  return name == nullptr ? "" : name->as_string();
}

/// The op that implements the activation.
const char* activation_of(const std::string& directory) {
  std::string key;
  const std::string name = named_activation(directory, key);
  if (name.empty()) return "sigmoid";
  const std::string kind = name.substr(name.rfind('.') + 1);
  if (name.starts_with("torch.nn.") && kind == "Sigmoid") return "sigmoid";
  if (name.starts_with("torch.nn.") && kind == "Identity") return "identity";
  base::fail_unsupported(key, " '", name, "' of a cross-encoder; served are torch's Sigmoid and Identity");
}

bool is_open(const Shape& shape) {
  return shape.has_rank() && shape.rank() == 2 && !shape[0].is_static() && !shape[1].is_static();
}

/// Whether the inputs are tokens, their mask and optionally their types.
bool takes_tokens(const ir::Graph& graph) {
  constexpr std::array<std::string_view, 3> kNames = {"input_ids", "attention_mask", "token_type_ids"};
  std::array<bool, 3> found{};
  for (ir::ValueId id : graph.inputs()) {
    const auto at = std::find(kNames.begin(), kNames.end(), graph.value(id).name);
    const tensor::TensorType& type = graph.type(id);
    if (at == kNames.end() || type.dtype != tensor::DType::i64 || !is_open(type.shape)) return false;
    found[static_cast<size_t>(at - kNames.begin())] = true;
  }
  return found[0] && found[1];
}

/// The output `logits` [batch, 1]; kNoValue if there is none.
ir::ValueId logits_of(const ir::Graph& graph) {
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), kPairLogits);
  if (at == names.end()) return ir::kNoValue;
  const ir::ValueId logits = graph.outputs()[static_cast<size_t>(at - names.begin())];
  const tensor::TensorType& type = graph.type(logits);
  const bool fits = type.dtype == tensor::DType::f32 && type.shape.has_rank() && type.shape.rank() == 2 &&
                    !type.shape[0].is_static() && type.shape[1].is_static() && type.shape[1].value() == 1;
  return fits ? logits : ir::kNoValue;
}

}  // namespace

bool scores_pairs(const std::string& directory) {
  const auto has = [&](const char* name) { return base::file_exists(directory + "/" + name); };
  if (directory.empty() || !has("config.json") || is_sentence_encoder(directory)) return false;
  if (!has("tokenizer.json") && !has("vocab.txt")) return false;
  const Json config = read_config_json(directory);
  return first_architecture(config).ends_with("ForSequenceClassification") && class_count(config) == 1;
}

bool add_pair_score(Model& model) {
  ir::Graph& graph = model.graph;
  const bool is_known = model.format == "huggingface" || model.format == "onnx";
  const ir::ValueId logits = is_known ? logits_of(graph) : ir::kNoValue;
  if (logits == ir::kNoValue || !takes_tokens(graph) || !scores_pairs(model.directory)) return false;
  const auto& names = graph.output_names();
  if (std::find(names.begin(), names.end(), kPairScore) != names.end()) return false;
  Builder b = Builder(graph).within("score");
  graph.add_output(b.op(activation_of(model.directory), {logits}), kPairScore);
  graph.sort();
  return true;
}

}  // namespace trireme::model::hf
