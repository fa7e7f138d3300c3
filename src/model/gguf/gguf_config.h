// What the metadata of a GGUF file says about the decoder in it.
#pragma once

#include <string>
#include <string_view>
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

/// A type of Hugging Face's config.json, and the architecture as which GGUF files have it.
struct CheckpointType {
  std::string_view type, architecture;
};
/// Those that are written; of several types of one architecture the plain one is first.
const std::vector<CheckpointType>& written_types();
/// The type of the checkpoints that files of an architecture are made of, whose products have the names of
/// all such checkpoints. Throws unsupported for one that is not known.
std::string_view checkpoint_type(std::string_view architecture);

/// Whether files of an architecture have the rows of queries and keys in another order than checkpoints,
/// whose rotating pairs are halves of a head: neighbours.
bool turns_heads(std::string_view architecture);
/// The row of a head's `channels` rows of a checkpoint that stands at place `row` of the head in such a file.
inline int64_t checkpoint_row(int64_t row, int64_t channels) { return row % 2 * (channels / 2) + row / 2; }

struct GgufDecoder {
  zoo::DecoderConfig config;
  std::vector<JoinedTensor> joined;
};

/// Throws unsupported for an architecture or option that the decoder does not have, naming it, and
/// invalid_argument for sizes that cannot be.
GgufDecoder read_gguf_decoder(const tensor::GgufFile& file);

}  // namespace trireme::model::gguf
