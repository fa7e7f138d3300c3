// Small convolutional network for digits: two convolutions, one pool, two linear layers.
#pragma once

#include "base/text/options.h"
#include "model/model.h"
#include "model/params.h"

namespace trireme::model::zoo {

struct CnnConfig {
  int64_t channels = 1, size = 28;
  int64_t width1 = 32, width2 = 64;  // channels after the first and the second convolution
  int64_t hidden = 128;
  int64_t classes = 10;
  double dropout = 0.25;

  void fields(base::OptionList& f);
};

/// image f32 [batch, channels, size, size] -> logits f32 [batch, classes].
/// With the defaults the network that PyTorch's MNIST example trains (1.2 million weights).
Model cnn(const CnnConfig& config, ParamSource& params);

}  // namespace trireme::model::zoo
