// The geometry of sliding windows (convolution, pooling): extents, strides, dilations, padding, result
// extents.
#pragma once

#include <array>

#include "ir/schema.h"

namespace trireme::ops {

/// One spatial axis of a window walk: result index o reads inputs o * stride - pad_begin + k * dilation.
struct WindowAxis {
  int64_t in = 1, kernel = 1, out = 1;
  int64_t stride = 1, dilation = 1, pad_begin = 0, pad_end = 0;
  int64_t reach() const { return (kernel - 1) * dilation + 1; }
};

/// Spatial axes padded in front to three (depth, height, width), so that one loop nest serves 1-D to 3-D.
struct Window {
  std::array<WindowAxis, 3> axes;
  const WindowAxis& operator[](size_t i) const { return axes[i]; }
  int64_t in_points() const { return axes[0].in * axes[1].in * axes[2].in; }
  int64_t out_points() const { return axes[0].out * axes[1].out * axes[2].out; }
  int64_t kernel_points() const { return axes[0].kernel * axes[1].kernel * axes[2].kernel; }
};

/// Result extents of the spatial axes `in` under the attributes kernel_shape (or `kernel` if that is absent),
/// strides, dilations, pads, auto_pad and ceil_mode. A symbolic extent stays when window and padding keep it,
/// else is unknown.
std::vector<tensor::Dim> window_out(const ir::Attrs& attrs, std::vector<int64_t> kernel,
                                    const std::vector<tensor::Dim>& in);

/// The same with static extents, as kernels need it. Throws unsupported for more than three spatial axes.
Window make_window(const ir::Attrs& attrs, std::vector<int64_t> kernel, const tensor::Dims& in);

/// Range of result indices whose tap k reads inside the input: [first, last).
struct TapRange {
  int64_t first, last;
};
TapRange tap_range(const WindowAxis& axis, int64_t k);

/// Permutations of activations of `rank` axes: from [n, c, spatial...] to [n, spatial..., c], and back.
std::vector<int64_t> channels_last(size_t rank);
std::vector<int64_t> channels_first(size_t rank);

/// 2 flop per multiply-add of a convolution with weights [oc, c / group, kernel...] in operand `w`, result 0.
ir::Cost conv_cost(const ir::NodeView& node, size_t w);

/// Attribute list that all window ops share.
std::vector<ir::AttrSpec> window_attrs();
/// The same with `group`, for convolutions.
std::vector<ir::AttrSpec> conv_attrs();

/// Whether x of a channels-last convolution lies channels-first: input_layout "nchw".
bool conv_reads_nchw(const ir::Attrs& attrs);

/// Throws unless `channels` of the input and weights w [oc, c / group, kernel...] fall into the attribute
/// `group`.
void require_groups(const ir::Attrs& attrs, const tensor::Dim& channels, const tensor::Shape& w);

/// Shape [n, oc, spatial...] of a convolution of x with weights w [oc, c / group, kernel...].
tensor::Shape infer_conv_shape(const ir::Attrs& attrs, const tensor::Shape& x, const tensor::Shape& w);

}  // namespace trireme::ops
