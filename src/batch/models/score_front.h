// The front that scores texts by a language model: how likely each is, token by token.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "batch/models/prompt_text.h"
#include "batch/models/row_front.h"
#include "data/text/tokenizer.h"
#include "model/model.h"

namespace trireme::batch {

/// Of a graph input_ids [batch, seq] -> logits [batch, seq, vocabulary]. A row gives "logprob" f64, the sum
/// of log p(token | tokens before it) over all tokens but the first, and "tokens" i64, how many those are.
class ScoreFront final : public RowFront {
 public:
  /// Longer texts than `max_length` tokens are refused, which 0 leaves to the model's positions: a score of a
  /// part would not be the text's.
  ScoreFront(const model::Model& model, std::unique_ptr<data::Tokenizer> tokenizer, PromptText text,
             int64_t max_length);

  std::vector<std::string> columns() const override { return text_.columns(); }
  std::vector<data::Field> outputs() const override;
  void prepare(const data::Rows& piece, const Take& take) const override;
  std::vector<OutputValue> finish(const std::vector<tensor::Tensor>& inputs,
                                  std::vector<tensor::Tensor> outputs) const override;
  bool keeps_inputs() const override { return true; }
  void pad(sched::Padding& padding) const override;

 private:
  const std::unique_ptr<data::Tokenizer> tokenizer_;
  const PromptText text_;
  const int64_t max_length_;
};

}  // namespace trireme::batch
