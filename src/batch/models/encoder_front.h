// The front of an encoder of texts: a column of texts becomes tokens, as the server's front makes them.
#pragma once

#include <string>
#include <vector>

#include "batch/models/prompt_text.h"
#include "batch/models/row_front.h"
#include "data/text/text_encoder.h"
#include "model/model.h"

namespace trireme::batch {

class EncoderFront final : public RowFront {
 public:
  /// Of a Hugging Face directory whose graph takes ids and mask. Texts are cut to `max_length` tokens; 0: to
  /// what the model knows.
  EncoderFront(const model::Model& model, PromptText text, int64_t max_length);

  std::vector<std::string> columns() const override { return text_.columns(); }
  std::vector<data::Field> outputs() const override { return outputs_; }
  void prepare(const data::Rows& piece, const Take& take) const override;
  void pad(sched::Padding& padding) const override;

 private:
  const PromptText text_;
  const data::TextEncoder encoder_;
  const std::vector<int64_t> buckets_;  ///< lengths that texts are filled up to
  const std::vector<data::Field> outputs_;
};

}  // namespace trireme::batch
