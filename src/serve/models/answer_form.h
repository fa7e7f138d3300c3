// The outputs of an answer, from what a model computed.
#pragma once

#include <string>
#include <vector>

#include "serve/infer/infer_response.h"
#include "serve/models/border.h"

namespace trireme::serve {

/// The labels of the configuration's outputs, by output, from the files that it names below `root`.
std::vector<std::vector<std::string>> read_output_labels(const ModelConfig& config, const std::string& root);

/// Puts outputs into answers as the client wishes them: as they are, or their best classes by name.
class AnswerForm {
 public:
  /// `config` outlives it.
  AnswerForm(const ModelConfig& config, std::vector<std::vector<std::string>> labels)
      : config_(config), labels_(std::move(labels)) {}
  void add(InferResponse& response, const AnswerWish& wish, WireTensor values) const;

 private:
  const ModelConfig& config_;
  const std::vector<std::vector<std::string>> labels_;
};

}  // namespace trireme::serve
