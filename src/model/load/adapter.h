// Reads an adapter of low rank for a model of any format that takes them.
#pragma once

#include <string>

#include "model/hf/adapter.h"

namespace trireme::model {

/// Reads an adapter as PEFT writes it for a network of these modules. `config`: Model::config of the model,
/// which says how the checkpoint that the adapter was made for calls, joins and orders its products. Throws
/// what hf::read_adapter() and gguf::read_adapter() throw.
hf::Adapter read_adapter(const std::string& directory, const hf::ModuleSizes& modules,
                         const base::Json& config);

}  // namespace trireme::model
