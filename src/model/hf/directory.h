// Hugging Face directories: which architecture lies there, and loading and saving it.
#pragma once

#include <string>

#include "model/model.h"
#include "model/safetensors.h"

namespace trireme::model::hf {

/// Loads config.json and model.safetensors (or its shards): bert, gpt2, llama, vit and resnet. Throws
/// unsupported for another architecture or option, naming it; invalid_argument for weights that do not fit
/// the config.
Model load_directory(const std::string& directory, const LoadOptions& options = {});

/// What save_directory may be told.
struct SaveOptions {
  std::string companions;  ///< a directory whose tokenizer files are copied; empty: the model's own
};

/// Writes config.json, model.safetensors and, if there are any, the tokenizer's files, so that Transformers'
/// from_pretrained takes the directory. `weights` holds the params of the graph under its names; stacked ones
/// are written as Transformers has them. Throws unsupported for a network that Transformers does not have,
/// not_found for a weight that is missing.
void save_directory(const Model& model, const NamedTensors& weights, const std::string& directory,
                    const SaveOptions& options = {});
/// The same with the weights inside the graph.
void save_directory(const Model& model, const std::string& directory, const SaveOptions& options = {});

/// Copies files of a tokenizer and of sentence-transformers, as far as `from` has them.
void copy_companions(const std::string& from, const std::string& to);

/// config.json of a directory. Throws not_found or invalid_argument.
base::Json read_config_json(const std::string& directory);
/// The first of "architectures"; "" if there is none.
std::string first_architecture(const base::Json& config);
/// config_sentence_transformers.json of a directory; null where there is none.
base::Json sentence_settings(const std::string& directory);
/// True for a sentence-transformers directory that makes vectors of texts, not scores of pairs.
bool is_sentence_encoder(const std::string& directory);
/// Name, format, directory and config of a model that was loaded from `directory`.
void set_origin(Model& model, const std::string& directory, const base::Json& config);

}  // namespace trireme::model::hf
