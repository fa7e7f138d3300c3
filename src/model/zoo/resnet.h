// Residual networks: ResNet-18 to -152 for photographs, and the small ones for 28x28 and 32x32 images.
#pragma once

#include <cstdint>

#include "base/text/options.h"
#include "model/model.h"
#include "model/params.h"

namespace trireme::model::zoo {

/// What all residual networks can choose.
struct ResidualOptions {
  int64_t classes = 1000;
  int64_t channels = 3, size = 224;
  double epsilon = 1e-5;
  double momentum = 0.9;  // weight of the old running statistics in each step
  bool zero_init_residual = false;
  double residual_gain = 1;
  double noise = 0;

  void fields(base::OptionList& f);
};

struct ResnetConfig : ResidualOptions {
  int64_t depth = 50;
  bool small_images = false;

  void fields(base::OptionList& f);
};

struct SmallResnetConfig : ResidualOptions {
  int64_t depth = 8;
  int64_t width = 16;

  SmallResnetConfig() {
    classes = 10;
    channels = 1;
    size = 28;
  }
  void fields(base::OptionList& f);
};

/// ResNet of He et al. 2015 (stride in the 3x3 as in torchvision): image f32 [batch, channels, size, size]
/// -> logits f32 [batch, classes]. Weights are named as Transformers names them. Depths 18, 34, 50, 101, 152;
/// throws unsupported for another.
Model resnet(const ResnetConfig& config, ParamSource& params);

/// config.json of the same network for Transformers; it keeps the image's size too. Null where Transformers
/// has no such network: another epsilon than 1e-5, the stem of small images.
base::Json resnet_json(const ResnetConfig& config);

/// The same on small images, as the paper has it for CIFAR-10: a 3x3 stem without pool and three stages of
/// (depth - 2) / 6 basic blocks, `width`, 2 and 4 times as wide. Throws unsupported for a depth that is not
/// 6 n + 2.
Model small_resnet(const SmallResnetConfig& config, ParamSource& params);

/// ResNet-`depth` with random weights for benchmarks and tests of inference: activations stay of order one
/// and no normalisation is trivial.
Model random_resnet(int64_t depth, uint64_t seed = 1, int64_t size = 224, int64_t classes = 1000);
/// The settings of that network.
ResnetConfig random_resnet_config(int64_t depth);

}  // namespace trireme::model::zoo
