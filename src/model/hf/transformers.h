// GPT-2, decoders of all forms, ViT and ResNet classifiers, from Hugging Face directories.
#pragma once

#include <string>

#include "model/model.h"

namespace trireme::model::hf {

/// Loads a directory whose config.json says model_type "gpt2", "vit", "resnet" or that of a decoder
/// (forms/forms.h): the graphs of zoo/gpt2.h, zoo/vit.h, zoo/resnet.h and zoo/decoder.h. Throws unsupported
/// for options we do not have, by name.
Model load_gpt2(const std::string& directory, const LoadOptions& options = {});
Model load_decoder(const std::string& directory, const LoadOptions& options = {});
Model load_vit(const std::string& directory, const LoadOptions& options = {});
Model load_resnet(const std::string& directory, const LoadOptions& options = {});

}  // namespace trireme::model::hf
