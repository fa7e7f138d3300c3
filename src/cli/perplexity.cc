// How well a language model foretells a text.
#include "cli/perplexity.h"

#include <algorithm>
#include <cmath>

#include "data/text/tokenizer.h"
#include "engine/session/session.h"

namespace trireme::cli {
namespace {

/// -log of the probability that logits give to class `target`.
double surprise(std::span<const float> logits, int64_t target) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(double(v) - double(top));
  return std::log(sum) + double(top) - double(logits[static_cast<size_t>(target)]);
}

}  // namespace

double perplexity(const model::Model& model, const std::string& tokenizer, const std::string& text,
                  const PerplexityOptions& options) {
  std::vector<int64_t> ids = data::open_tokenizer(tokenizer)->encode(text);
  ids.resize(std::min(ids.size(), static_cast<size_t>(options.tokens)));
  const int64_t length = std::min(options.context, static_cast<int64_t>(ids.size()));
  base::require(length >= 2, "a text of ", ids.size(), " tokens");
  engine::SessionOptions session_options;
  session_options.threads = options.threads;
  const auto prepared = std::make_shared<const engine::PreparedModel>(model.graph);
  engine::Session session(prepared, session_options);
  double sum = 0;
  int64_t count = 0;
  for (size_t begin = 0; begin + static_cast<size_t>(length) <= ids.size();
       begin += static_cast<size_t>(length)) {
    const std::span<const int64_t> part(ids.data() + begin, static_cast<size_t>(length));
    const std::vector<tensor::Tensor> out = session.run({tensor::Tensor::from<int64_t>({1, length}, part)});
    const std::span<const float> logits = out[0].data<float>();
    const size_t classes = logits.size() / static_cast<size_t>(length);
    for (size_t i = 0; i + 1 < part.size(); ++i, ++count) {
      base::require(part[i + 1] >= 0 && part[i + 1] < static_cast<int64_t>(classes),
                    "the tokenizer gives token ", part[i + 1], ", the model has ", classes);
      sum += surprise(logits.subspan(i * classes, classes), part[i + 1]);
    }
  }
  return std::exp(sum / static_cast<double>(count));
}

}  // namespace trireme::cli
