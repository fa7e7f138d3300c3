// The model that a version's directory or file holds, and which of its outputs are served.
#pragma once

#include <memory>
#include <string>

#include "model/model.h"
#include "serve/config/model_config.h"
#include "serve/config/other_models.h"

namespace trireme::serve {

/// What lies in a directory, for messages: the first names, sorted.
std::string list_directory(const std::string& path);

/// The GGUF file that a path is or that is the only one in a directory; empty: none.
std::string gguf_file_of(const std::string& path);

/// Opens what the model readers know, or `others`. Throws what is wrong with it, and what is there instead.
model::Model open_model(const std::string& path, const OtherModels& others);

/// Of an encoder's outputs only the embedding is served. False for models without one.
bool keep_embedding(model::Model& model);

/// The places of those outputs that the config names and of those that sequences keep, each with a line break
/// in front; empty: it names none, or all. What nobody is given need not be computed.
std::string places_of_outputs(const ir::Graph& graph, const ModelConfig& config);
/// Drops the other outputs; does nothing for no places.
void keep_outputs(ir::Graph& graph, const std::string& places);

/// A model that is served as one of tensors, with the outputs that its kind has by itself: an encoder's
/// embeddings, a cross-encoder's scores.
model::Model open_as_tensors(const std::string& path, const OtherModels& others);

}  // namespace trireme::serve
