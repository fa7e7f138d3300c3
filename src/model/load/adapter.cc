// Reads an adapter of low rank for a model of any format that takes them.
#include "model/load/adapter.h"

#include "model/gguf/gguf_adapter.h"
#include "model/gguf/gguf_model.h"

namespace trireme::model {

hf::Adapter read_adapter(const std::string& directory, const hf::ModuleSizes& modules,
                         const base::Json& config) {
  if (config.is_object() && config.contains(gguf::kArchitectureKey))
    return gguf::read_adapter(directory, modules, config);
  return hf::read_adapter(directory, modules, config);
}

}  // namespace trireme::model
