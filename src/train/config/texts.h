// From texts to the token rows of an encoder: what stands between a table of sentences and a loss graph.
#pragma once

#include <string>
#include <vector>

#include "base/text/options.h"
#include "data/dataset/dataset.h"

namespace trireme::train {

/// Section `texts`: which columns are sentences, which is the target.
struct TextOptions {
  std::vector<std::string> columns;  ///< empty: the data is not text
  std::string target;
  double target_scale = 1;
  int64_t max_tokens = 64;
  std::string tokenizer;  ///< directory; empty: the model's own
  void fields(base::OptionList& f);
};

/// Samples with fields input_ids, attention_mask and token_type_ids i64 [columns, max_tokens] ([max_tokens]
/// for one column), cut and padded, and "labels": f32 [] = target_scale times the number in the target
/// column, or i64 [] if `is_class`. Throws not_found for an unknown column or a missing tokenizer,
/// invalid_argument for a target that is no number.
data::DatasetPtr tokenized(data::DatasetPtr texts, const TextOptions& options,
                           const std::string& model_directory, bool is_class);

}  // namespace trireme::train
