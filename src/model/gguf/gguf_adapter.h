// Adapters of low rank for language models in GGUF files.
#pragma once

#include <string>

#include "base/text/json.h"
#include "model/hf/adapter.h"

namespace trireme::model::gguf {

/// Reads an adapter as PEFT writes it for the checkpoint that a GGUF file was made of, for the network of
/// that file: `modules` and the parts of the result have the file's names, and rows of second factors stand
/// in the file's order. `config`: Model::config of load_gguf(). Throws what hf::read_adapter() throws, and
/// unsupported for an architecture whose checkpoints are not known.
hf::Adapter read_adapter(const std::string& directory, const hf::ModuleSizes& modules,
                         const base::Json& config);

}  // namespace trireme::model::gguf
