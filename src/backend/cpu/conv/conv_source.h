// Internal: the virtual left operand of a convolution, for float and int8 alike.
#pragma once

#include "backend/cpu/conv/conv_nhwc.h"
#include "backend/cpu/dense/gemm_driver.h"

namespace trireme::cpu {

/// True if the image is first copied with its padding, so that a whole kernel row is one contiguous run: the
/// input has too few channels to fill a run by itself.
inline bool conv_wants_padded_copy(const ConvShape& s) {
  return s.groups == 1 && s.dilation_w == 1 && s.kw > 1 && s.c < 16;
}

/// Rows of x[n, h, w, c] of `element` bytes, channels of group `group`. `zeros` stands for pixels outside.
inline RowSource conv_source(const ConvShape& s, const void* x, int64_t element, int64_t group,
                             const void* zeros) {
  RowSource r;
  r.run = s.c / s.groups;
  r.base = static_cast<const char*>(x) + group * r.run * element;
  r.pixel_stride = s.c * element;
  const bool pads = s.pad_top || s.pad_left || s.pad_bottom || s.pad_right;
  if (s.kh == 1 && s.kw == 1 && s.stride_h == 1 && s.stride_w == 1 && !pads) {
    r.row_stride = r.pixel_stride;
    return r;
  }
  r.spatial = true;
  r.taps_h = s.kh;
  r.taps_w = s.kw;
  r.h = s.h;
  r.w = s.w;
  r.oh = s.out_h();
  r.ow = s.out_w();
  r.line_stride = s.w * r.pixel_stride;
  r.image_stride = s.h * r.line_stride;
  r.stride_h = s.stride_h;
  r.stride_w = s.stride_w;
  r.dilation_h = s.dilation_h;
  r.dilation_w = s.dilation_w;
  r.pad_top = s.pad_top;
  r.pad_left = s.pad_left;
  r.zeros = static_cast<const char*>(zeros);
  return r;
}

/// Rows of an image that already carries its padding: taps of one kernel row merge into one run of kw * c.
inline RowSource conv_padded_source(const ConvShape& s, const void* padded, int64_t element, int64_t group) {
  ConvShape grown = s;
  grown.h += s.pad_top + s.pad_bottom;
  grown.w += s.pad_left + s.pad_right;
  grown.pad_top = grown.pad_left = grown.pad_bottom = grown.pad_right = 0;
  RowSource r = conv_source(grown, padded, element, group, padded);
  r.padded = true;
  if (s.dilation_w == 1 && s.groups == 1 && r.spatial) {
    r.run = s.kw * s.c;
    r.taps_w = 1;
  }
  return r;
}

/// Elements of the padded copy of the input.
inline int64_t conv_padded_elements(const ConvShape& s) {
  return s.n * (s.h + s.pad_top + s.pad_bottom) * (s.w + s.pad_left + s.pad_right) * s.c;
}

}  // namespace trireme::cpu
