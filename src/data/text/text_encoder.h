// Texts to token tensors for encoder models, grouped so that a text's result does not depend on its
// neighbours.
#pragma once

#include <string>
#include <vector>

#include "data/text/wordpiece.h"
#include "tensor/tensor.h"

namespace trireme::data {

/// Texts, or pairs of texts, of one length bucket: their places in the request and their tokens.
struct TokenGroup {
  std::vector<int64_t> rows;
  tensor::Tensor ids;    ///< i64 [rows, length]
  tensor::Tensor mask;   ///< i64 [rows, length], 1 keeps, 0 is padding
  tensor::Tensor types;  ///< i64 [rows, length], 1 for the second text of a pair
};

/// What a text encoder is given.
enum class TextKind : uint8_t { text, pair };

class TextEncoder {
 public:
  /// Reads the tokenizer of a Hugging Face directory. Texts are cut to the smallest of the tokenizer's limit,
  /// sentence_bert_config.json's max_seq_length and `max_positions`; of pairs the tokenizer's limit is
  /// model_max_length of tokenizer_config.json, as cross-encoders have it.
  TextEncoder(const std::string& directory, int64_t max_positions, TextKind kind = TextKind::text);

  /// Tokenizes and groups by the smallest of `buckets` (ascending) that holds the text, else by its length,
  /// so that every text is padded to its own bucket whatever stands beside it. Any thread.
  std::vector<TokenGroup> encode(const std::vector<std::string>& texts,
                                 const std::vector<int64_t>& buckets) const;
  /// The same of pairs first[i], second[i] in one row each; what is too long is cut longest first. Neighbours
  /// with the same first text tokenize it once.
  std::vector<TokenGroup> encode_pairs(const std::vector<std::string>& first,
                                       const std::vector<std::string>& second,
                                       const std::vector<int64_t>& buckets) const;
  int64_t max_tokens() const { return max_tokens_; }

 private:
  WordPiece tokenizer_;
  int64_t max_tokens_;
};

/// `buckets` up to `most`, which is one of them, so that nothing is padded past it.
std::vector<int64_t> buckets_up_to(std::vector<int64_t> buckets, int64_t most);

}  // namespace trireme::data
