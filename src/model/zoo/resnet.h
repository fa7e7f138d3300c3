// ResNet with random weights: a network of real size whose files nobody has to carry.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace trireme::model::zoo {

/// Builds ResNet-`depth` (18, 34, 50, 101, 152; He et al. 2015, stride in the 3x3 as in torchvision) for
/// images [batch, 3, size, size] -> logits [batch, classes]. The weights depend on `seed` alone; residual
/// branches are scaled so that activations stay of order one. Throws unsupported for another depth.
Model resnet(int depth, uint64_t seed = 1, int64_t size = 224, int64_t classes = 1000);

}  // namespace trireme::model::zoo
