// Multi-layer perceptron: linear layers with an activation between them.
#pragma once

#include "base/text/options.h"
#include "model/model.h"
#include "model/params.h"

namespace trireme::model::zoo {

struct MlpConfig {
  int64_t channels = 1, size = 28;  // of the image that is flattened
  int64_t features = 0;
  std::vector<int64_t> hidden{256, 128};
  int64_t classes = 10;
  std::string activation = "relu";
  double dropout = 0;

  void fields(base::OptionList& f);
};

/// image f32 [batch, channels, size, size], or features f32 [batch, features] -> logits f32 [batch, classes].
Model mlp(const MlpConfig& config, ParamSource& params);

}  // namespace trireme::model::zoo
