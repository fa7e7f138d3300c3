// The front that scores texts by a language model.
#include "batch/models/score_front.h"

#include <algorithm>
#include <cmath>

namespace trireme::batch {
namespace {

using tensor::DType;
using tensor::Tensor;

constexpr int64_t kUsualLength = 2048;  // where neither the model nor the job says how long a text may be

int64_t most_scored_tokens(const model::Model& model, int64_t max_length) {
  auto known = kUsualLength;
  for (const char* key : {"max_position_embeddings", "n_positions"}) {
    if (model.config.is_object() && model.config.contains(key)) known = model.config.at(key).as_int();
  }
  return max_length > 0 ? std::min(known, max_length) : known;
}

/// Doublings and the steps half-way between, so that at most a third of a text is filled up.
std::vector<int64_t> scored_lengths(int64_t most) {
  std::vector<int64_t> lengths;
  for (int64_t length = 16; length < most; length *= 2) {
    lengths.push_back(length);
    if (length + length / 2 < most) lengths.push_back(length + length / 2);
  }
  lengths.push_back(most);
  return lengths;
}

/// log p of class `target`.
double log_probability(std::span<const float> logits, int64_t target) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(double(v) - double(top));
  return double(logits[static_cast<size_t>(target)]) - double(top) - std::log(sum);
}

}  // namespace

ScoreFront::ScoreFront(const model::Model& model, std::unique_ptr<data::Tokenizer> tokenizer, PromptText text,
                       int64_t max_length)
    : tokenizer_(std::move(tokenizer)),
      text_(std::move(text)),
      max_length_(most_scored_tokens(model, max_length)) {
  const ir::Graph& graph = model.graph;
  const bool fits = graph.inputs().size() == 1 && graph.outputs().size() == 1 &&
                    graph.type(graph.inputs()[0]).dtype == DType::i64 &&
                    graph.type(graph.outputs()[0]).dtype == DType::f32 &&
                    graph.type(graph.outputs()[0]).shape.has_rank() &&
                    graph.type(graph.outputs()[0]).shape.rank() == 3;
  if (!fits) base::fail_unsupported("only a language model scores texts: ids in, logits of every place out");
}

std::vector<data::Field> ScoreFront::outputs() const {
  return {{.name = "logprob", .dtype = DType::f64}, {.name = "tokens", .dtype = DType::i64}};
}

void ScoreFront::prepare(const data::Rows& piece, const Take& take) const {
  for (int64_t row = 0; row < piece.count; ++row) {
    std::vector<int64_t> ids;
    try {
      if (const base::Error* error = piece.error_at(row)) throw *error;
      ids = tokenizer_->encode(text_.of(piece, row));
      base::require(!ids.empty(), "a text of no tokens has no score");
      base::require(static_cast<int64_t>(ids.size()) <= max_length_, "a text of ", ids.size(),
                    " tokens, at most ", max_length_, " are scored");
    } catch (const base::Error& e) {
      take.refuse(row, e);
      continue;
    }
    const auto length = static_cast<int64_t>(ids.size());
    take.part({.row = row, .inputs = {Tensor::from<int64_t>({1, length}, std::span<const int64_t>(ids))}});
  }
}

std::vector<OutputValue> ScoreFront::finish(const std::vector<Tensor>& inputs,
                                            std::vector<Tensor> outputs) const {
  const std::span<const int64_t> ids = inputs[0].data<int64_t>();
  const std::span<const float> logits = outputs[0].data<float>();  // [bucket, vocabulary]
  const auto classes = static_cast<size_t>(outputs[0].dims()[1]);
  double sum = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    base::require(ids[i + 1] >= 0 && ids[i + 1] < static_cast<int64_t>(classes), "the tokenizer gives token ",
                  ids[i + 1], ", the model has ", classes);
    sum += log_probability(logits.subspan(i * classes, classes), ids[i + 1]);
  }
  return {Tensor::scalar(sum), Tensor::scalar(static_cast<int64_t>(ids.size()) - 1)};
}

void ScoreFront::pad(sched::Padding& padding) const {
  padding.length_buckets = scored_lengths(max_length_);
  padding.padded_inputs = {0};
}

}  // namespace trireme::batch
