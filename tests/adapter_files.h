// Writes adapters as PEFT does, with random factors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/text/json.h"
#include "model/safetensors.h"
#include "tests/run_kernels.h"

namespace trireme::tests {

/// A module that an adapter adds to, by the checkpoint's name.
struct AdapterModuleFile {
  std::string name;
  int64_t in = 0, out = 0, rank = 0;
};

/// Factors whose product is of about the size of `scale`.
inline model::NamedTensors adapter_factors(const std::vector<AdapterModuleFile>& modules, uint32_t seed,
                                           float scale = 0.05f) {
  model::NamedTensors tensors;
  for (const AdapterModuleFile& m : modules) {
    const std::string front = "base_model.model." + m.name;
    tensors.emplace_back(front + ".lora_A.weight", random_tensor({m.rank, m.in}, seed, scale));
    tensors.emplace_back(front + ".lora_B.weight", random_tensor({m.out, m.rank}, seed + 1, 1.0f));
    seed += 2;
  }
  return tensors;
}

inline base::Json adapter_config(int64_t rank, double alpha) {
  return base::Json::object({{"peft_type", "LORA"},
                             {"task_type", "CAUSAL_LM"},
                             {"base_model_name_or_path", "base"},
                             {"bias", "none"},
                             {"fan_in_fan_out", false},
                             {"inference_mode", true},
                             {"init_lora_weights", true},
                             {"lora_alpha", alpha},
                             {"lora_dropout", 0.05},
                             {"modules_to_save", base::Json()},
                             {"rank_pattern", base::Json::object()},
                             {"alpha_pattern", base::Json::object()},
                             {"r", rank},
                             {"target_modules", "all-linear"},
                             {"use_dora", false},
                             {"use_rslora", false}});
}

inline void write_adapter(const std::string& directory, const base::Json& config,
                          const model::NamedTensors& tensors) {
  std::filesystem::create_directories(directory);
  base::write_file_atomic(directory + "/adapter_config.json", config.dump());
  model::save_safetensors(directory + "/adapter_model.safetensors", tensors, {{"format", "pt"}});
}

}  // namespace trireme::tests
