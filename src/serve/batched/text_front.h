// The text front of a model of texts: texts or pairs of them become token tensors, and tokens that clients
// send are checked.
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
  /// The inputs that stand for all others, first in the configuration: a text, or with the second one a pair.
  static constexpr const char* kInput = "text";
  static constexpr const char* kPair = "text_pair";

  /// Of a directory of Hugging Face's whose graph takes input_ids, attention_mask and perhaps token_type_ids.
  /// `buckets` are cut to its longest text.
  TextFront(const model::Model& model, const std::vector<int64_t>& buckets, data::TextKind kind);

  /// How many inputs of the configuration are texts.
  size_t text_inputs() const { return kind_ == data::TextKind::pair ? 2 : 1; }
  /// True where the request brings texts, not tokens.
  bool is_for(const InferRequest& request) const;
  /// The text inputs as the configuration has them, taken out of it, whose other inputs are the graph's;
  /// types of tokens that it does not name are added. One text a row, which may have a dimension of its own.
  /// Throws invalid_argument for other types and extents.
  std::vector<TensorConfig> take_inputs(ModelConfig& config) const;

  /// What texts of one length became.
  struct Group {
    std::vector<int64_t> rows;           ///< their places in the request
    std::vector<tensor::Tensor> inputs;  ///< the graph's, i64 [rows, length]
    int64_t tokens = 0;                  ///< without padding
  };
  /// Of the checked text inputs, grouped by length. Throws invalid_argument for none.
  std::vector<Group> encode(const CheckedInputs& inputs, const ModelConfig& config) const;
  /// Adds types of zero to a request of tokens that brings none.
  void complete(InferRequest& request) const;
  /// Throws invalid_argument for checked tensors [rows, length] that differ in their length, for a length
  /// past the longest bucket and for an id or a type that the model does not know.
  void check_tokens(const std::vector<tensor::Tensor>& inputs, const ModelConfig& config) const;

  /// Lengths that texts are filled up to, at most that of the longest.
  const std::vector<int64_t>& buckets() const { return buckets_; }
  /// All inputs of the graph: lengths are their dimension 1.
  std::vector<size_t> padded_inputs() const;
  /// Inputs of the graph for one text of `length` tokens.
  std::vector<tensor::Tensor> example(int64_t length) const;

 private:
  enum class Feed : uint8_t { ids, mask, types };
  static constexpr const char* kNames[] = {"input_ids", "attention_mask", "token_type_ids"};
  bool has_types() const;

  data::TextKind kind_;
  base::Json settings_;  ///< config.json
  data::TextEncoder encoder_;
  int64_t vocabulary_, types_;
  std::vector<int64_t> buckets_;
  std::vector<Feed> feeds_;  ///< by the graph's inputs
};

}  // namespace trireme::serve
