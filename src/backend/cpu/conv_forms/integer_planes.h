// Exact integer convolutions of small groups over channels-first images of bytes.
#pragma once

#include "backend/cpu/conv/conv_nhwc.h"
#include "backend/cpu/quant/qgemm_s8.h"

namespace trireme::cpu {

/// y [n, oc, out_h, out_w] = the convolution of x - input.zero, x [n, c, h, w], with w - zero, w [oc,
/// c / groups, kh, kw]. Pixels outside the image count as the input's zero point.
struct IntegerPlanes {
  ConvShape shape;
  const void* x = nullptr;
  QuantInput input;
  const void* w = nullptr;
  bool w_is_signed = true;
  const void* w_zero = nullptr;  // of the type of w; null: 0
  bool zero_per_filter = false;  // w_zero is [oc], else one value
  int32_t* y = nullptr;
};

/// True for groups of so few taps that f32 holds every sum exactly, and of so few channels or filters that
/// they would leave most lanes of a matrix product empty. No padding is negative, and neither windows nor
/// strides reach far beyond the image.
bool integer_planes_fits(const ConvShape& shape);

size_t integer_planes_workspace_bytes(const ConvShape& shape, int threads);

/// Each band of lines of a group is copied as floats less the zero point, with its padding and with the
/// columns of one stride next to each other; then every tap is a multiply-add of vectors. Weights are read as
/// they are. 2 flop per tap.
void integer_planes(const IntegerPlanes& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
