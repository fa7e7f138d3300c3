// Measures how well a language model predicts a text, and collects statistics of its products' inputs.
#include "cli/perplexity.h"

#include <algorithm>
#include <cmath>

#include "data/text/tokenizer.h"
#include "engine/session/session.h"
#include "passes/precision/input_moments.h"

namespace trireme::cli {
namespace {

/// -log of the probability that the logits give to class `target`.
double surprise(std::span<const float> logits, int64_t target) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(double(v) - double(top));
  return std::log(sum) + double(top) - double(logits[static_cast<size_t>(target)]);
}

}  // namespace

std::vector<std::vector<int64_t>> sequences_of(const std::string& tokenizer, const std::string& text,
                                               const PerplexityOptions& options) {
  std::vector<int64_t> ids = data::open_tokenizer(tokenizer)->encode(text);
  ids.resize(std::min(ids.size(), static_cast<size_t>(options.tokens)));
  const size_t length = std::min(static_cast<size_t>(options.context), ids.size());
  base::require(length >= 2, "a text of ", ids.size(), " tokens");
  std::vector<std::vector<int64_t>> sequences;
  for (size_t begin = 0; begin + length <= ids.size(); begin += length)
    sequences.emplace_back(ids.begin() + static_cast<int64_t>(begin),
                           ids.begin() + static_cast<int64_t>(begin + length));
  return sequences;
}

double perplexity(const model::Model& model, const std::string& tokenizer, const std::string& text,
                  const PerplexityOptions& options) {
  engine::SessionOptions session_options;
  session_options.threads = options.threads;
  const auto prepared = std::make_shared<const engine::PreparedModel>(model.graph);
  engine::Session session(prepared, session_options);
  double sum = 0;
  int64_t count = 0;
  for (const std::vector<int64_t>& part : sequences_of(tokenizer, text, options)) {
    const auto length = static_cast<int64_t>(part.size());
    const std::vector<tensor::Tensor> out =
        session.run({tensor::Tensor::from<int64_t>({1, length}, std::span<const int64_t>(part))});
    const std::span<const float> logits = out[0].data<float>();
    const size_t classes = logits.size() / part.size();
    for (size_t i = 0; i + 1 < part.size(); ++i, ++count) {
      base::require(part[i + 1] >= 0 && part[i + 1] < static_cast<int64_t>(classes),
                    "the tokenizer gives token ", part[i + 1], ", the model has ", classes);
      sum += surprise(logits.subspan(i * classes, classes), part[i + 1]);
    }
  }
  return std::exp(sum / static_cast<double>(count));
}

Calibration::Calibration(model::Model model, const std::string& tokenizer, const std::string& text,
                         const PerplexityOptions& options)
    : model_(std::move(model)),
      sequences_(sequences_of(tokenizer, text, options)),
      threads_(options.threads) {
  model_.graph.sort();
  for (const auto& [name, input] : passes::product_inputs(model_.graph)) depths_.emplace(name, input.depth);
}

Moments Calibration::moments(const std::set<std::string>& weights, bool whole) const {
  passes::MomentsGraph asked = passes::input_moments(model_.graph, weights, whole);
  if (asked.output_of.empty()) return {};
  std::vector<std::vector<float>> sums(asked.graph.outputs().size());
  engine::SessionOptions options;
  options.threads = threads_;
  engine::Session session(std::make_shared<const engine::PreparedModel>(std::move(asked.graph)), options);
  for (const std::vector<int64_t>& ids : sequences_) {
    const auto length = static_cast<int64_t>(ids.size());
    const std::vector<tensor::Tensor> out =
        session.run({tensor::Tensor::from<int64_t>({1, length}, std::span<const int64_t>(ids))});
    for (size_t i = 0; i < sums.size(); ++i) {
      const std::span<const float> more = out[i].data<float>();
      sums[i].resize(more.size());
      for (size_t j = 0; j < more.size(); ++j) sums[i][j] += more[j];
    }
  }
  Moments moments;
  for (const auto& [name, output] : asked.output_of) moments[name] = sums[output];
  return moments;
}

}  // namespace trireme::cli
