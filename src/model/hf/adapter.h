// Adapters of low rank (LoRA) as PEFT writes them: adapter_config.json beside adapter_model.safetensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/text/json.h"
#include "model/hf/checkpoint.h"
#include "model/safetensors.h"

namespace trireme::model::hf {

/// What an adapter adds to the product of one module: y += scale (x a') b'. As the file has them, in f32, f16
/// or bf16; they may look into the mapped file.
struct AdapterPart {
  std::string module;  ///< of our network, whose weight is `module.weight`
  tensor::Tensor a;    ///< [rank, in]
  tensor::Tensor b;    ///< [out, rank]
  double scale = 1;    ///< alpha / rank, or alpha / sqrt(rank)

  int64_t rank() const { return a.dims()[0]; }
};

struct Adapter {
  std::vector<AdapterPart> parts;  ///< each of another module
  /// The largest of its parts.
  int64_t rank() const;
};

/// Extents of a module's product: rows of `in` to rows of `out`.
struct ModuleSize {
  int64_t in = 0, out = 0;
};
using ModuleSizes = std::map<std::string, ModuleSize>;

/// Reads an adapter for a network of these modules; `base`: its config.json, which says what checkpoints
/// join. Work and memory follow the files' size. Throws not_found where a file is missing, invalid_argument
/// for factors that do not fit the modules, unsupported naming what is not known: DoRA, biases,
/// modules_to_save, embeddings, other kinds than LoRA.
Adapter read_adapter(const std::string& directory, const ModuleSizes& modules, const base::Json& base);
/// The same where `joined` says what checkpoints join.
Adapter read_adapter(const std::string& directory, const ModuleSizes& modules,
                     const std::vector<Joined>& joined);

/// The largest rank that adapter_config.json names; the same errors.
int64_t adapter_rank(const std::string& directory);

}  // namespace trireme::model::hf
