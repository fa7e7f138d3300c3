// Vision transformer (Dosovitskiy et al. 2020): patches of an image as tokens, norms before each branch.
#pragma once

#include "base/text/options.h"
#include "model/model.h"
#include "model/params.h"

namespace trireme::model::zoo {

struct VitConfig {
  int64_t channels = 3, size = 224, patch = 16;
  int64_t width = 768, layers = 12, heads = 12;
  int64_t inner = 0;
  int64_t classes = 1000;
  std::string activation = "gelu";
  double epsilon = 1e-12, dropout = 0;
  double deviation = 0.02;  // of the weights at the start

  /// A small one for 28x28 and 32x32 images.
  static VitConfig tiny();
  void fields(base::OptionList& f);
  int64_t inner_width() const { return inner == 0 ? 4 * width : inner; }
  int64_t patches() const { return (size / patch) * (size / patch); }
};

/// image f32 [batch, channels, size, size] -> logits f32 [batch, classes], from a class token before the
/// patches. Weights are named as in ViTForImageClassification of Transformers, but the three projections of
/// attention are one weight `attention.qkv`, stacked by rows. Throws invalid_argument unless heads divide
/// the width and patches the image.
Model vit(const VitConfig& config, ParamSource& params);

/// config.json of the same network for Transformers.
base::Json vit_json(const VitConfig& config);

}  // namespace trireme::model::zoo
