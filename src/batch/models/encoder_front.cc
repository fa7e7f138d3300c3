// The front of an encoder of texts.
#include "batch/models/encoder_front.h"

#include <algorithm>

#include "batch/models/tensor_front.h"

namespace trireme::batch {
namespace {

/// A text is filled up to the next of these: by an eighth of its tokens at most, or three of a short one.
/// Steps no finer than that leave each length enough rows of a window for full batches.
std::vector<int64_t> encoder_lengths(int64_t most) {
  constexpr int64_t kLeastStep = 4, kStepsOfDoubling = 8;
  std::vector<int64_t> lengths;
  for (int64_t begin = 8; begin < most; begin *= 2) {
    const int64_t step = std::max(kLeastStep, begin / kStepsOfDoubling);
    for (int64_t length = begin; length < std::min(2 * begin, most); length += step)
      lengths.push_back(length);
  }
  return lengths;
}

int64_t most_encoded_tokens(const model::Model& model, int64_t max_length) {
  const auto known = model.config.get_or<int64_t>("max_position_embeddings", 512);
  return max_length > 0 ? std::min(known, max_length) : known;
}

}  // namespace

EncoderFront::EncoderFront(const model::Model& model, PromptText text, int64_t max_length)
    : text_(std::move(text)),
      encoder_(model.directory, most_encoded_tokens(model, max_length)),
      buckets_(data::buckets_up_to(encoder_lengths(encoder_.max_tokens()), encoder_.max_tokens())),
      outputs_(output_fields(model.graph, outputs_by_row(model.graph, true, true))) {}

void EncoderFront::prepare(const data::Rows& piece, const Take& take) const {
  std::vector<std::string> texts;
  std::vector<int64_t> rows;  // of these texts
  for (int64_t row = 0; row < piece.count; ++row) {
    try {
      if (const base::Error* error = piece.error_at(row)) throw *error;
      texts.push_back(text_.of(piece, row));
      rows.push_back(row);
    } catch (const base::Error& e) {
      take.refuse(row, e);
    }
  }
  // In groups of one length: batches fill up what they need, and count it.
  for (const data::TokenGroup& group : encoder_.encode(texts, {})) {
    for (size_t i = 0; i < group.rows.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      take.part({.row = rows[static_cast<size_t>(group.rows[i])],
                 .inputs = {group.ids.rows(at, at + 1), group.mask.rows(at, at + 1)}});
    }
  }
}

void EncoderFront::pad(sched::Padding& padding) const {
  padding.length_buckets = buckets_;
  padding.padded_inputs = {0, 1};
}

}  // namespace trireme::batch
