// GPT-2 and Llama language models, and ViT classifiers, from Hugging Face directories.
#pragma once

#include <string>

#include "model/model.h"

namespace trireme::model::hf {

/// Loads a directory whose config.json says model_type "gpt2", "llama" or "vit": the graphs of zoo/gpt2.h,
/// zoo/llama.h and zoo/vit.h. Throws unsupported for options we do not have, by name.
Model load_gpt2(const std::string& directory);
Model load_llama(const std::string& directory);
Model load_vit(const std::string& directory);

}  // namespace trireme::model::hf
