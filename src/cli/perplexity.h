// How well a language model foretells a text.
#pragma once

#include <cstdint>
#include <string>

#include "model/model.h"

namespace trireme::cli {

struct PerplexityOptions {
  int64_t context = 512;  ///< tokens of a sequence, which begins anew behind each
  int64_t tokens = 8192;  ///< of the text that are read at most
  int threads = 0;        ///< 0: all cores
};

/// exp of the mean of -log p(token | tokens before it in its sequence), over all but the first token of each.
/// `tokenizer`: where it lies. Throws invalid_argument for a text of fewer tokens than one sequence needs.
double perplexity(const model::Model& model, const std::string& tokenizer, const std::string& text,
                  const PerplexityOptions& options);

}  // namespace trireme::cli
