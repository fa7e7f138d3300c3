// The gradient of a channels-last convolution towards its weights.
#pragma once

#include "backend/cpu/conv/conv_nhwc.h"
#include "backend/cpu/tiles/dense_kernels.h"

namespace trireme::cpu {

/// dw [oc, c / groups, kh, kw] (ONNX order) from x and dy [n, out_h, out_w, oc] of the convolution `shape`.
struct ConvGradWArgs {
  ConvShape shape;
  const float* x = nullptr;
  ImageLayout x_layout = ImageLayout::nhwc;
  const float* dy = nullptr;
  float* dw = nullptr;
  Isa isa = best_isa();
  /// In Winograd form only: dy is of the windows of a maximum behind the convolution, see WinogradArgs.
  const uint8_t* which = nullptr;
  /// Of windows and of lines only: [oc], takes the sum of dy over all pixels. Null: not wanted.
  float* db = nullptr;
};

/// A product summed over output pixels, gathered block by block (implicit im2col). Pixels fall into pieces
/// that depend on the extents only; each piece adds up chunks of pixels in order, the pieces are added in a
/// fixed tree.
bool conv_grad_w_columns_fits(const ConvShape& shape, ImageLayout layout);
size_t conv_grad_w_columns_bytes(const ConvShape& shape, int threads);
void conv_grad_w_columns(const ConvGradWArgs& args, void* workspace, base::ThreadPool& pool);

/// The same for few input channels, nhwc or nchw: a row of taps is one run of a padded line.
bool conv_grad_w_lines_fits(const ConvShape& shape, ImageLayout layout);
/// Whether the last vector of a row of taps has room for a one, whose gradient is the sum of dy.
inline bool conv_grad_w_lines_sums(const ConvShape& s) { return s.c * s.kh * s.kw % kRowSlots != 0; }
size_t conv_grad_w_lines_bytes(const ConvShape& shape, ImageLayout layout, int threads);
void conv_grad_w_lines(const ConvGradWArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
