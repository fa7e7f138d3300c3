// Loads a model of any format.
#pragma once

#include <string>

#include "model/model.h"

namespace trireme::model {

/// Loads a file *.onnx, a directory with model.onnx, or a Hugging Face directory (config.json and
/// model.safetensors). Throws not_found, unsupported (unknown format, operator or architecture) or
/// invalid_argument (broken file).
Model load_model(const std::string& path, const LoadOptions& options = {});

/// Leaves large weights and constants their types alone (tensor/absent.h).
void drop_content(ir::Graph& graph);

}  // namespace trireme::model
