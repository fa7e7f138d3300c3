// Which input elements each output coordinate of a resize reads, axis by axis, and with which weights.
#pragma once

#include <optional>

#include "ir/schema.h"

namespace trireme::ops {

/// One resized axis: output i = sum over k of weight[i * taps + k] * input[index[i * taps + k]].
struct ResizeAxis {
  size_t axis = 0;
  int64_t in = 0, out = 0, taps = 1;
  std::vector<int32_t> index;    // [out, taps], inside [0, in)
  std::vector<float> weight;     // [out, taps]; rows sum to 1
  std::vector<uint8_t> outside;  // [out]: tf_crop_and_resize reads outside the image; empty elsewhere
};

struct ResizePlan {
  std::vector<ResizeAxis> axes;  // those that change anything, in rising order
  bool nearest = true;
  float extrapolation = 0;
};

/// The result extent of an axis of `in` elements. The product is rounded to f32, as ONNX infers shapes: 10
/// elements times 0.7f are 7, while the exact product is below 7.
double scaled_extent(double scale, int64_t in);

/// Scale and result extent of every axis, from `scales` or `sizes`. Absent while their values are not known.
struct ResizeTarget {
  std::vector<double> scales;
  tensor::Dims out;
};
std::optional<ResizeTarget> resize_target(const ir::NodeView& node);

/// By axis of x: whether every element along it stays where it is. None where scales, sizes or a region that
/// decides it are not known; an extent that stays the same is not enough.
std::vector<bool> kept_axes(const ir::NodeView& node);
/// Whether the sizes of a resize, if it has any, are extents of the last dimensions of its result, in order.
bool sizes_are_extents(const ir::NodeView& node);

/// The plan of resize (and of upsample, whose coordinates are asymmetric and round down). Needs known
/// operands.
ResizePlan plan_resize(const ir::NodeView& node, bool is_upsample);

}  // namespace trireme::ops
