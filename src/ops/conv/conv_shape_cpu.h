// From the attributes of channels-last convolutions to the shape that the CPU kernels take.
#pragma once

#include <algorithm>
#include <optional>

#include "backend/cpu/conv/conv_nhwc.h"
#include "ir/kernel.h"
#include "ops/conv/window.h"

namespace trireme::ops {

/// Extents of the activations of a convolution.
struct ConvExtents {
  int64_t n, h, w, c;
};

/// The two inner axes of `window` over `oc` sums of all channels of each group.
inline cpu::ConvShape conv_shape(const Window& window, const ConvExtents& x, int64_t oc, int64_t groups) {
  const WindowAxis &h = window[1], &v = window[2];
  const auto small = [](int64_t value) { return static_cast<int>(value); };
  return {.n = x.n,
          .h = h.in,
          .w = v.in,
          .c = x.c,
          .oc = oc,
          .kh = small(h.kernel),
          .kw = small(v.kernel),
          .stride_h = small(h.stride),
          .stride_w = small(v.stride),
          .dilation_h = small(h.dilation),
          .dilation_w = small(v.dilation),
          .pad_top = small(h.pad_begin),
          .pad_left = small(v.pad_begin),
          .pad_bottom = small(h.pad_end),
          .pad_right = small(v.pad_end),
          .groups = groups};
}

/// `weights` are the extents [oc, c / group, kh, kw], or [oc, c / group, kw] of images of height 1.
inline cpu::ConvShape conv_shape(const ir::Attrs& attrs, const ConvExtents& x, const tensor::Dims& weights) {
  const tensor::Dims kernel(weights.begin() + 2, weights.end());
  const Window window =
      make_window(attrs, kernel, kernel.size() == 1 ? tensor::Dims{x.w} : tensor::Dims{x.h, x.w});
  base::require(window[2].kernel == kernel.back() && (kernel.size() == 1 || window[1].kernel == kernel[0]),
                "kernel_shape contradicts weights ", tensor::to_string(weights));
  return conv_shape(window, x, weights[0], attrs.get_int("group", 1));
}

/// Channels-last activations [n, h, w, c], or [n, w, c] of images of height 1.
inline ConvExtents channels_last_extents(const tensor::Dims& x) {
  if (x.size() == 3) return {x[0], 1, x[1], x[2]};
  return {x[0], x[1], x[2], x[3]};
}

/// Operand x, which lies channels-first under input_layout "nchw".
inline ConvExtents conv_extents(const ir::NodeView& n) {
  tensor::Dims x = n.in_dims(0);
  if (conv_reads_nchw(n.attrs)) std::rotate(x.begin() + 1, x.begin() + 2, x.end());
  return channels_last_extents(x);
}

/// Whether two axes compute a channels-last convolution of three: it sees one slice in depth at a time, so
/// that slices are images of a batch; or one point of each slice, so that it is a line of slices whose points
/// lie side by side. `y` are the extents of its result as such.
struct FoldedConv {
  cpu::ConvShape shape;
  tensor::Dims y;
};

/// `x`, `w` and `y` are the extents of the convolution's input, weights and result.
inline std::optional<FoldedConv> folded_conv(const ir::Attrs& attrs, const tensor::Dims& x,
                                             const tensor::Dims& w, const tensor::Dims& y) {
  if (x.size() != 5) return std::nullopt;
  const Window window = make_window(attrs, {w[2], w[3], w[4]}, {x[1], x[2], x[3]});
  const auto moves_nothing = [](const WindowAxis& a) {
    return a.kernel == 1 && a.stride == 1 && a.pad_begin == 0 && a.pad_end == 0;
  };
  const int64_t groups = attrs.get_int("group", 1);
  if (moves_nothing(window[0])) {
    return FoldedConv{conv_shape(window, {x[0] * x[1], x[2], x[3], x[4]}, w[0], groups),
                      {y[0] * y[1], y[2], y[3], y[4]}};
  }
  if (!moves_nothing(window[1]) || !moves_nothing(window[2])) return std::nullopt;
  WindowAxis points;
  points.in = points.out = x[2] * x[3];
  const Window line{{WindowAxis(), window[0], points}};
  return FoldedConv{conv_shape(line, {x[0], x[1], x[2] * x[3], x[4]}, w[0], groups),
                    {y[0], y[1], y[2] * y[3], y[4]}};
}

inline std::optional<FoldedConv> folded_conv(const ir::NodeView& n) {
  if (n.in_dims(0).size() != 5 || conv_reads_nchw(n.attrs)) return std::nullopt;
  return folded_conv(n.attrs, n.in_dims(0), n.in_dims(1), n.out_dims(0));
}

/// What kernels of two spatial axes compute for the node, which refuse_conv_axes does not refuse.
inline cpu::ConvShape conv_shape(const ir::NodeView& n) {
  const auto folded = folded_conv(n);
  return folded ? folded->shape : conv_shape(n.attrs, conv_extents(n), n.in_dims(1));
}

/// The extents of its result.
inline tensor::Dims conv_result(const ir::NodeView& n) {
  const auto folded = folded_conv(n);
  return folded ? folded->y : n.out_dims(0);
}

/// Refuses convolutions that have more than two spatial axes to walk.
inline ir::Refusal refuse_conv_axes(const ir::NodeView& n) {
  if (n.in[0].shape.rank() > 4 && !folded_conv(n)) return "three spatial axes";
  return std::nullopt;
}

/// Refuses shapes that no fast kernel takes; `y` are the extents of the convolution's result.
inline ir::Refusal refuse_conv_shape(const cpu::ConvShape& s, const tensor::Dims& y) {
  const ConvExtents out = channels_last_extents(y);
  if (s.out_h() != out.h || s.out_w() != out.w) return "padding is negative or rounds up";
  if (s.pad_top < 0 || s.pad_left < 0 || s.pad_bottom < 0 || s.pad_right < 0) return "padding is negative";
  return std::nullopt;
}

/// Refuses operands of other extents or types than kernels of conv_nhwc read by: weights, bias, residual.
inline ir::Refusal refuse_conv_operands(const ir::NodeView& n, const cpu::ConvShape& s) {
  for (size_t i = 1; i < n.in.size(); ++i) {
    if (n.present(i) && n.in[i].dtype != n.in[0].dtype)
      return base::concat("operand ", i, " is ", tensor::name_of(n.in[i].dtype));
  }
  if (n.present(2) && n.in[2].shape.elements() != s.oc)
    return base::concat("bias ", n.in[2].shape.to_string(), " of ", s.oc, " channels");
  if (n.present(3) && n.in[3].shape != n.out[0].shape)
    return base::concat("residual ", n.in[3].shape.to_string(), " of ", n.out[0].shape.to_string());
  return std::nullopt;
}

/// Refuses what no Winograd form takes, whatever the dilation; the limits on channels and extents are
/// measured: docs/decisions/0006-winograd.md.
inline ir::Refusal refuse_not_winograd(const cpu::ConvShape& s) {
  if (s.kh != 3 || s.kw != 3) return base::concat("kernel is ", s.kh, " x ", s.kw, ", not 3 x 3");
  if (s.stride_h != 1 || s.stride_w != 1) return base::concat("stride is ", s.stride_h, " x ", s.stride_w);
  if (s.groups != 1) return base::concat("has ", s.groups, " groups");
  if (s.c < 16 || s.oc < 16) return base::concat("fewer than 16 channels: ", s.c, " to ", s.oc);
  return std::nullopt;
}

/// Refuses what only a dense 3 x 3 convolution of stride and dilation 1 is.
inline ir::Refusal refuse_not_three_by_three(const cpu::ConvShape& s) {
  if (const auto why = refuse_not_winograd(s)) return why;
  if (s.dilation_h != 1 || s.dilation_w != 1)
    return base::concat("dilation is ", s.dilation_h, " x ", s.dilation_w);
  return std::nullopt;
}

}  // namespace trireme::ops
