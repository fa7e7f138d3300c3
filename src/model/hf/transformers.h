// GPT-2 and Llama language models, ViT and ResNet classifiers, from Hugging Face directories.
#pragma once

#include <string>

#include "model/model.h"

namespace trireme::model::hf {

/// Loads a directory whose config.json says model_type "gpt2", "llama", "vit" or "resnet": the graphs of
/// zoo/gpt2.h, zoo/llama.h, zoo/vit.h and zoo/resnet.h. Throws unsupported for options we do not have, by
/// name.
Model load_gpt2(const std::string& directory);
Model load_llama(const std::string& directory);
Model load_vit(const std::string& directory);
Model load_resnet(const std::string& directory);

}  // namespace trireme::model::hf
