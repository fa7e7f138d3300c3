// Language models in GGUF files: the decoder that the metadata describes, with the file's tensors as they
// lie.
#pragma once

#include <string>

#include "model/model.h"
#include "tensor/gguf/gguf_file.h"

namespace trireme::model::gguf {

/// Members of Model::config of such a model: the architecture; layers, heads, kv_heads, head_dim, width and
/// inner.
inline constexpr const char* kArchitectureKey = "gguf_architecture";
inline constexpr const char* kSizesKey = "gguf_sizes";

/// Loads a file of architecture llama (Llama, Mistral, Mixtral, SmolLM), qwen2, qwen3, qwen3moe, gemma2,
/// gemma3, phi3, gpt2 or gptneox: the graph of zoo/decoder.h whose weights are named as the file's tensors.
/// F32 tensors and tensors in blocks look into the mapped file, blocks behind the operator dequantize_blocks,
/// matrices in F16 and BF16 behind dequantize_weights; vectors of those become f32. `directory` of the model
/// is the file itself, where its tokenizer lies. Throws unsupported for another architecture, option or
/// element type, naming it; invalid_argument for tensors that do not fit.
Model load_gguf(const std::string& path);
/// The same of an open file.
Model load_gguf(const tensor::GgufFile& file);

}  // namespace trireme::model::gguf
