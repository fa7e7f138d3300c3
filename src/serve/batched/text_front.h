// The text front of an encoder model: texts become token tensors, and tokens that clients send are checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/text/text_encoder.h"
#include "model/model.h"
#include "serve/models/border.h"

namespace trireme::serve {

/// Any thread.
class TextFront {
 public:
  /// The input that stands for all others, first in the configuration.
  static constexpr const char* kInput = "text";

  /// Of a Hugging Face directory whose graph has an embedding. `buckets` are cut to its longest text.
  TextFront(const model::Model& model, const std::vector<int64_t>& buckets);

  /// True where the request brings texts, not tokens.
  static bool is_for(const InferRequest& request) {
    return !request.inputs.empty() && request.inputs[0].name == kInput;
  }
  /// Of the checked text input, grouped by length. Throws invalid_argument for none.
  std::vector<data::TokenGroup> encode(const CheckedInputs& inputs, const ModelConfig& config) const;
  /// Throws invalid_argument for checked ids and mask [rows, length] that differ in their length, for a
  /// length past the longest bucket and for an id outside of the vocabulary.
  void check_tokens(const std::vector<tensor::Tensor>& inputs, const ModelConfig& config) const;
  /// Lengths that texts are filled up to, at most that of the longest.
  const std::vector<int64_t>& buckets() const { return buckets_; }

 private:
  data::TextEncoder encoder_;
  int64_t vocabulary_;
  std::vector<int64_t> buckets_;
};

}  // namespace trireme::serve
