// Finds the model that a version's directory or file holds.
#include "serve/models/model_file.h"

#include <algorithm>

#include "base/files/directory.h"
#include "model/hf/pair_scores.h"
#include "model/load/load.h"

namespace trireme::serve {

std::string list_directory(const std::string& path) {
  std::error_code error;
  const std::vector<std::string> names = base::names_in(path, error);
  constexpr size_t kMost = 6;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMost) text += base::concat(" and ", names.size() - kMost, " more");
  return text.empty() ? "nothing" : text;
}

std::string gguf_file_of(const std::string& path) {
  constexpr std::string_view kEnding = ".gguf";
  if (path.ends_with(kEnding)) return path;
  std::error_code error;
  std::string found;
  for (const std::string& name : base::names_in(path, error)) {
    if (!name.ends_with(kEnding)) continue;
    if (!found.empty()) return {};  // ambiguous
    found = path + "/" + name;
  }
  return found;
}

model::Model open_model(const std::string& path, const OtherModels& others) {
  try {
    if (others.has(path)) return others.open(path);
    const std::string gguf = gguf_file_of(path);
    return model::load_model(gguf.empty() ? path : gguf, {.takes_strings = true, .takes_pairs = true});
  } catch (const base::Error& e) {
    // If no model is recognised, the message lists what the directory holds.
    if (e.code() != base::ErrorCode::not_found || !e.message().starts_with("directory '")) throw;
    throw base::Error(e.code(), base::concat(e.message(), "; it holds ", list_directory(path)));
  }
}

bool keep_embedding(model::Model& model) {
  ir::Graph& graph = model.graph;
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), "sentence_embedding");
  if (model.format != "huggingface" || at == names.end()) return false;
  graph.set_outputs({graph.outputs()[static_cast<size_t>(at - names.begin())]}, {"sentence_embedding"});
  return true;
}

std::string places_of_outputs(const ir::Graph& graph, const ModelConfig& config) {
  std::string places;
  size_t count = 0;
  for (size_t i = 0; i < graph.output_names().size() && !config.outputs.empty(); ++i) {
    const std::string& name = graph.output_names()[i];
    const bool is_named = std::any_of(config.outputs.begin(), config.outputs.end(),
                                      [&](const TensorConfig& t) { return t.name == name; });
    if (!is_named && !(config.sequence && config.sequence->keeps_output(name))) continue;
    places += "\n" + std::to_string(i);
    ++count;
  }
  return count == graph.output_names().size() ? "" : places;
}

void keep_outputs(ir::Graph& graph, const std::string& places) {
  std::vector<ir::ValueId> ids;
  std::vector<std::string> names;
  for (size_t at = 0; at < places.size(); at = std::min(places.find('\n', at + 1), places.size())) {
    const auto i = static_cast<size_t>(std::stoull(places.substr(at + 1)));
    ids.push_back(graph.outputs().at(i));
    names.push_back(graph.output_names().at(i));
  }
  if (!ids.empty()) graph.set_outputs(std::move(ids), std::move(names));
}

model::Model open_as_tensors(const std::string& path, const OtherModels& others) {
  model::Model model = open_model(path, others);
  if (!keep_embedding(model)) model::hf::add_pair_score(model);
  return model;
}

}  // namespace trireme::serve
