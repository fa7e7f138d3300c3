// What the metadata of a GGUF file says about the decoder in it.
#pragma once

#include <string>
#include <vector>

#include "model/zoo/decoder.h"
#include "tensor/gguf/gguf_file.h"

namespace trireme::model::gguf {

/// Several of our weights are one tensor of the file, one under the other by rows.
struct JoinedTensor {
  std::string name;                ///< in the file: "attn_qkv"
  std::vector<std::string> parts;  ///< in our names
  std::vector<int64_t> rows;       ///< of each part
};

/// The places of a decoder by the file's names of tensors, which differ by what it has.
zoo::DecoderNames gguf_names(const zoo::DecoderConfig& config);

struct GgufDecoder {
  zoo::DecoderConfig config;
  std::vector<JoinedTensor> joined;
};

/// Throws unsupported for an architecture or option that the decoder does not have, naming it, and
/// invalid_argument for sizes that cannot be.
GgufDecoder read_gguf_decoder(const tensor::GgufFile& file);

}  // namespace trireme::model::gguf
