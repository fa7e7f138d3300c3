// A language model on a text: how well it foretells it, and what the inputs of its products are on the way.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/model.h"

namespace trireme::cli {

struct PerplexityOptions {
  int64_t context = 512;  ///< tokens of a sequence, which begins anew behind each
  int64_t tokens = 8192;  ///< of the text that are read at most
  int threads = 0;        ///< 0: all cores
};

/// The tokens of a text, cut into sequences of `context`; the rest is left out, a text shorter than one is
/// one. Throws invalid_argument for a text of fewer than two tokens.
std::vector<std::vector<int64_t>> sequences_of(const std::string& tokenizer, const std::string& text,
                                               const PerplexityOptions& options);

/// exp of the mean of -log p(token | tokens before it in its sequence), over all but the first token of each.
/// `tokenizer`: where it lies. Throws invalid_argument for a text of fewer tokens than one sequence needs.
double perplexity(const model::Model& model, const std::string& tokenizer, const std::string& text,
                  const PerplexityOptions& options);

/// Sums of x' x [depth, depth], or of squares [depth], by the name of the weight that x meets.
using Moments = std::map<std::string, std::vector<float>>;

/// A model and the tokens of a text, cut into sequences.
class Calibration {
 public:
  /// Throws invalid_argument for a text of fewer tokens than one sequence needs.
  Calibration(model::Model model, const std::string& tokenizer, const std::string& text,
              const PerplexityOptions& options);

  /// Runs all sequences for the products with `weights`; those that are not read as matrices, or by several
  /// inputs, are left out. Memory: the sums, one run of the model.
  Moments moments(const std::set<std::string>& weights, bool whole) const;
  /// The depth of each weight whose sums moments() can give.
  const std::map<std::string, int64_t>& depths() const { return depths_; }

 private:
  model::Model model_;
  std::vector<std::vector<int64_t>> sequences_;
  std::map<std::string, int64_t> depths_;
  int threads_;
};

}  // namespace trireme::cli
