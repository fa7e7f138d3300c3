// The tokenizer of a Hugging Face directory as metadata of a GGUF file.
#pragma once

#include <string>

#include "base/text/json.h"
#include "tensor/gguf/gguf_writer.h"

namespace trireme::model::gguf {

/// Writes tokenizer.ggml.* from tokenizer.json (BPE over bytes: a token for each of the embedding's `rows`,
/// kinds, merges, the name of its words), the numbers of special tokens from tokenizer_config.json, else from
/// config.json, and the chat templates of the directory. Without a tokenizer only the last two. Throws
/// unsupported for another kind of tokenizer, and for words that have no name in GGUF.
void write_tokenizer(const std::string& directory, const base::Json& config, int64_t rows,
                     tensor::GgufWriter& to);

}  // namespace trireme::model::gguf
