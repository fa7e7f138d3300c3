// Hugging Face directories: recognises the architecture, loads and saves models.
#include "model/hf/directory.h"

#include <filesystem>
#include <unordered_map>

#include "base/files/file.h"
#include "model/hf/bert.h"
#include "model/hf/checkpoint.h"
#include "model/hf/forms/forms.h"
#include "model/hf/pair_scores.h"
#include "model/hf/transformers.h"

namespace trireme::model::hf {
namespace {

namespace fs = std::filesystem;
using tensor::Tensor;

/// An architecture that Transformers knows too.
struct Architecture {
  std::string_view type;
  Model (*load)(const std::string&, const LoadOptions&);
};

Model load_encoder(const std::string& directory, const LoadOptions& options) {
  const bool has_types = options.takes_pairs && scores_pairs(directory);
  return load_bert(directory,
                   {.has_token_types = has_types, .is_without_content = options.is_without_content});
}

constexpr Architecture kArchitectures[] = {
    {"bert", load_encoder}, {"gpt2", load_gpt2}, {"vit", load_vit}, {"resnet", load_resnet}};

/// Files of a tokenizer and of sentence-transformers that are copied if the directory has them.
constexpr const char* kCompanions[] = {"tokenizer.json",
                                       "tokenizer_config.json",
                                       "vocab.txt",
                                       "vocab.json",
                                       "merges.txt",
                                       "tokenizer.model",
                                       "added_tokens.json",
                                       "special_tokens_map.json",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "modules.json",
                                       "sentence_bert_config.json",
                                       "config_sentence_transformers.json",
                                       "1_Pooling/config.json",
                                       "generation_config.json"};

/// Splits a stacked weight into equal parts with the names of Transformers; other weights stay whole.
void append_weight(NamedTensors& out, const std::string& name, const Tensor& t) {
  for (const Stacked& s : stacked_weights()) {
    const size_t at = name.find(s.name);
    if (at == std::string::npos) continue;
    const auto count = static_cast<int64_t>(s.parts.size()), rows = t.dims().at(0) / count;
    for (int64_t i = 0; i < count; ++i) {
      const std::string& part = s.parts[static_cast<size_t>(i)];
      out.emplace_back(name.substr(0, at) + part + name.substr(at + s.name.size()),
                       t.rows(i * rows, (i + 1) * rows));
    }
    return;
  }
  out.emplace_back(name, t);
}

/// An encoder's pooler, which the graph of hidden states does not contain, is copied from the model's
/// original checkpoint.
void keep_pooler(NamedTensors& out, const Model& model) {
  if (model.config.get_or("model_type", "") != "bert" || model.directory.empty()) return;
  if (first_architecture(model.config) != "BertModel" || !has_checkpoint(model.directory)) return;
  const CheckpointParams source(model.directory, "bert.");
  for (const char* name : {"pooler.dense.weight", "pooler.dense.bias"}) {
    if (source.has(name)) out.emplace_back(name, source.need(name));
  }
}

/// Adds zero biases where Transformers requires them; they do not change the model.
void add_zero_biases(NamedTensors& out, const base::Json& config) {
  if (config.get_or("model_type", "") != "gpt2") return;
  std::unordered_map<std::string, bool> have;
  for (const auto& [name, t] : out) have[name] = true;
  const size_t count = out.size();
  for (size_t i = 0; i < count; ++i) {
    const std::string name = out[i].first;
    const bool is_table = name.find("wte.") != std::string::npos || name.find("wpe.") != std::string::npos;
    if (!name.ends_with(".weight") || is_table || name.starts_with("lm_head")) continue;
    const std::string bias = name.substr(0, name.size() - 6) + "bias";
    if (!have.contains(bias))
      out.emplace_back(bias, Tensor::zeros(tensor::DType::f32, {out[i].second.dims().back()}));
  }
}

}  // namespace

Model load_directory(const std::string& directory, const LoadOptions& options) {
  const std::string type = read_config_json(directory).get_or("model_type", "");
  std::string known;
  for (const Architecture& a : kArchitectures) {
    if (a.type == type) return a.load(directory, options);
    known += std::string(a.type) + ", ";
  }
  for (const FormRow& row : decoder_forms()) {
    if (row.type == type) return load_decoder(directory, options);
    known += std::string(row.type) + (&row == &decoder_forms().back() ? "" : ", ");
  }
  base::fail_unsupported("Hugging Face model type '", type, "'; supported: ", known);
}

void save_directory(const Model& model, const NamedTensors& weights, const std::string& directory,
                    const SaveOptions& options) {
  if (!model.config.is_object() || !model.config.contains("model_type")) {
    base::fail_unsupported("Transformers has no network like '", model.name, "'; export it as ONNX");
  }
  for (const ir::Node& node : model.graph.nodes()) {
    if (node.op != nullptr && node.op_name() == "dequantize_weights")
      base::fail_unsupported("export of stored weights, as '", model.graph.value(node.in[0]).name,
                             "' is; `trireme quantize` writes such directories");
  }
  std::unordered_map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, t] : weights) by_name[name] = &t;
  NamedTensors out;
  for (const ir::Value& v : model.graph.values()) {
    if (v.kind != ir::ValueKind::param && v.kind != ir::ValueKind::state) continue;
    const auto at = by_name.find(v.name);
    if (at == by_name.end()) base::fail(base::ErrorCode::not_found, "no weight '", v.name, "' to export");
    append_weight(out, v.name, *at->second);
  }
  if (const FormRow* row = find_form(model.config))
    out = to_checkpoint(out, read_form(*row, model.config).weights);
  add_zero_biases(out, model.config);
  keep_pooler(out, model);
  fs::create_directories(directory);
  const fs::path root(directory);
  copy_companions(options.companions.empty() ? model.directory : options.companions, directory);
  base::write_file_atomic((root / "config.json").string(), model.config.dump({.indent = 2}) + "\n");
  save_safetensors((root / "model.safetensors").string(), out, {{"format", "pt"}});
}

void save_directory(const Model& model, const std::string& directory, const SaveOptions& options) {
  NamedTensors weights;
  for (const ir::Value& v : model.graph.values()) {
    if (v.kind == ir::ValueKind::param) weights.emplace_back(v.name, v.data);
  }
  save_directory(model, weights, directory, options);
}

void copy_companions(const std::string& from, const std::string& to) {
  std::error_code none;  // fs::equivalent: false for directories that do not exist
  if (from.empty() || fs::equivalent(from, to, none)) return;
  for (const char* name : kCompanions) {
    const fs::path source = fs::path(from) / name, target = fs::path(to) / name;
    if (!base::file_exists(source.string())) continue;
    fs::create_directories(target.parent_path());
    base::write_file_atomic(target.string(), base::read_file(source.string()));
  }
}

base::Json read_config_json(const std::string& directory) {
  return base::parse_json(base::read_file((fs::path(directory) / "config.json").string()));
}

std::string first_architecture(const base::Json& config) {
  const base::Json* list = config.find("architectures");
  return list != nullptr && list->is_array() && list->size() > 0 ? list->at(size_t{0}).as_string() : "";
}

base::Json sentence_settings(const std::string& directory) {
  const std::string file = (fs::path(directory) / "config_sentence_transformers.json").string();
  return base::file_exists(file) ? base::parse_json(base::read_file(file)) : base::Json();
}

bool is_sentence_encoder(const std::string& directory) {
  if (!base::file_exists((fs::path(directory) / "modules.json").string())) return false;
  const base::Json settings = sentence_settings(directory);
  return !settings.is_object() || settings.get_or("model_type", "SentenceTransformer") != "CrossEncoder";
}

void set_origin(Model& model, const std::string& directory, const base::Json& config) {
  model.format = "huggingface";
  model.directory = directory;
  model.name = fs::path(directory).filename().string();
  model.graph.name = model.name;
  model.config = config;
}

}  // namespace trireme::model::hf
