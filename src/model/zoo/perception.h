// Perception from two sensors: cells of a camera image look at the points of a lidar or radar.
#pragma once

#include "base/text/options.h"
#include "model/model.h"
#include "model/params.h"

namespace trireme::model::zoo {

struct PerceptionConfig {
  int64_t channels = 3, size = 64;
  int64_t point_features = 4;
  int64_t stem_width = 32;
  int64_t width = 64, layers = 2, heads = 4;
  int64_t classes = 4;
  int64_t box_values = 4;
  double epsilon = 1e-5, dropout = 0;

  void fields(base::OptionList& f);
  /// The stem halves the image three times: one cell for each 8x8 pixels.
  int64_t cells() const { return (size / 8) * (size / 8); }
};

/// image f32 [batch, channels, size, size], points f32 [batch, points, point_features] and points_mask i64
/// [batch, points] (1 keeps, 0 is padding) ->
///   class_logits f32 [batch, cells, classes] (class 0: no object), boxes f32 [batch, cells, box_values]
/// Cells are the 8x8 pixel squares of the image, row by row. A convolutional stem makes a vector of each;
/// each point becomes a vector by two layers of its own; in every block the cells attend to the points, then
/// to each other. Throws invalid_argument unless heads divide the width and 8 the size.
Model perception(const PerceptionConfig& config, ParamSource& params);

}  // namespace trireme::model::zoo
