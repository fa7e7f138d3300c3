// The text front of an encoder model.
#include "serve/batched/text_front.h"

#include "base/error.h"

namespace trireme::serve {

TextFront::TextFront(const model::Model& model, const std::vector<int64_t>& buckets)
    : encoder_(model.directory, model.config.get_or<int64_t>("max_position_embeddings", 512)),
      vocabulary_(model.config.at("vocab_size").as_int()),
      buckets_(data::buckets_up_to(buckets, encoder_.max_tokens())) {}

std::vector<data::TokenGroup> TextFront::encode(const CheckedInputs& inputs,
                                                const ModelConfig& config) const {
  std::vector<data::TokenGroup> groups = encoder_.encode(inputs.tensors[0].strings, buckets_);
  base::require(!groups.empty(), "unexpected shape for input '", kInput, "' for model '", config.name,
                "'. Expected at least one text");
  return groups;
}

void TextFront::check_tokens(const std::vector<tensor::Tensor>& inputs, const ModelConfig& config) const {
  const tensor::Tensor& ids = inputs[0];  // [rows, length]
  base::require(ids.dims() == inputs[1].dims(), "unexpected shape for input '", config.inputs[2].name,
                "' for model '", config.name, "'. Expected ", tensor::to_string(ids.dims()), ", got ",
                tensor::to_string(inputs[1].dims()));
  base::require(ids.dims()[1] >= 1 && ids.dims()[1] <= buckets_.back(), "unexpected shape for input '",
                config.inputs[1].name, "' for model '", config.name, "': ", ids.dims()[1],
                " tokens, at most ", buckets_.back());
  for (int64_t id : ids.data<int64_t>()) {
    base::require(id >= 0 && id < vocabulary_, "token id ", id, " is outside of the vocabulary of ",
                  vocabulary_);
  }
}

}  // namespace trireme::serve
