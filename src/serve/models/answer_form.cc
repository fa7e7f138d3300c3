// Forms the outputs of an answer.
#include "serve/models/answer_form.h"

#include <utility>

#include "base/files/file.h"
#include "serve/infer/classify.h"
#include "serve/config/regular_file.h"

namespace trireme::serve {
namespace {

std::vector<std::string> read_labels(const std::string& root, const std::string& file) {
  std::vector<std::string> labels;
  if (file.empty()) return labels;
  const std::string text = read_regular_file(base::safe_join(root, file), size_t{64} << 20);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    labels.push_back(text.substr(at, end - at));
    if (!labels.back().empty() && labels.back().back() == '\r') labels.back().pop_back();
    at = end + 1;
  }
  return labels;
}

}  // namespace

std::vector<std::vector<std::string>> read_output_labels(const ModelConfig& config, const std::string& root) {
  std::vector<std::vector<std::string>> labels;
  for (const TensorConfig& t : config.outputs) {
    try {
      labels.push_back(read_labels(root, t.label_filename));
    } catch (const base::Error& e) {
      throw e.with("output '" + t.name + "': label_filename");
    }
  }
  return labels;
}

void AnswerForm::add(InferResponse& response, const AnswerWish& wish, WireTensor values) const {
  if (wish.classification > 0)
    values = classify(values, wish.classification, config_.is_batched(), labels_[wish.output]);
  response.outputs.push_back({std::move(values), wish.is_binary, wish.span});
}

}  // namespace trireme::serve
