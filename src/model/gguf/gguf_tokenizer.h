// The tokenizer of a Hugging Face directory as metadata of a GGUF file.
#pragma once

#include <string>

#include "base/text/json.h"
#include "tensor/gguf/gguf_writer.h"

namespace trireme::model::gguf {

/// Writes tokenizer.ggml.* from tokenizer.json (BPE over bytes: tokens, kinds, merges, the published
/// pattern's name), the numbers of special tokens from config.json, and the chat template of
/// tokenizer_config.json. Without tokenizer.json only the numbers. Throws unsupported for another kind of
/// tokenizer.
void write_tokenizer(const std::string& directory, const base::Json& config, tensor::GgufWriter& to);

}  // namespace trireme::model::gguf
