// Which form computes an f32 channels-last convolution: decided by the shape of one image, never by batch or
// team, because the forms round differently.
#pragma once

#include "backend/cpu/conv/conv_nhwc.h"

namespace trireme::cpu {

/// The forms in the order in which they are asked; implicit takes every shape.
enum class ConvForm : uint8_t {
  depthwise_lines,
  depthwise,
  winograd,
  winograd_groups,
  winograd_lines,
  narrow,
  grouped,
  implicit
};

/// True if each channel is a group of its own with one output.
inline bool conv_is_depthwise(const ConvShape& s) { return s.groups == s.c && s.oc == s.c; }

// The limits below are measured: docs/decisions/0054-convolutions-of-any-shape.md.

/// True where lines of a few channels next to each other are faster than channels read where they lie:
/// kernels of many taps, those that no form keeps in registers, and channels that leave lanes empty.
bool depthwise_lines_pays(const ConvShape& shape);

/// True where the Winograd form fits and is faster than the products. Constant weights.
bool winograd_pays(const ConvShape& shape);

/// The same of each of a few wide groups.
bool winograd_groups_pays(const ConvShape& shape);

/// The same of a kernel that is a line.
bool winograd_lines_pays(const ConvShape& shape);

/// True where lanes along the input channels are faster than lanes along the few outputs.
bool narrow_pays(const ConvShape& shape);

/// True where vectors of several groups are faster than a product for each group.
bool grouped_pays(const ConvShape& shape);

/// The form of constant weights and inputs of layout `x_layout`.
ConvForm conv_form(const ConvShape& shape, ImageLayout x_layout);

}  // namespace trireme::cpu
