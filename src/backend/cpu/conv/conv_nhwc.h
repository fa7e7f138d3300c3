// f32 convolutions over channels-last activations: implicit products on packed weights, epilogue fused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/tiles/dense_epilogue.h"
#include "backend/cpu/tiles/dense_isa.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// A 2-D convolution or pooling window over x[n, h, w, c] -> y[n, out_h, out_w, oc].
struct ConvShape {
  int64_t n = 1, h = 1, w = 1, c = 1, oc = 1;
  int kh = 1, kw = 1;
  int stride_h = 1, stride_w = 1;
  int dilation_h = 1, dilation_w = 1;
  int pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;
  int64_t groups = 1;

  int64_t out_h() const {
    return (h + pad_top + pad_bottom - int64_t{dilation_h} * (kh - 1) - 1) / stride_h + 1;
  }
  int64_t out_w() const {
    return (w + pad_left + pad_right - int64_t{dilation_w} * (kw - 1) - 1) / stride_w + 1;
  }
  /// Lines under one window, and pixels of a line under all windows of a line of outputs.
  int64_t window_lines() const { return int64_t{kh - 1} * dilation_h + 1; }
  int64_t window_pixels() const { return (out_w() - 1) * stride_w + int64_t{kw - 1} * dilation_w + 1; }
  int64_t flop() const { return 2 * n * out_h() * out_w() * oc * kh * kw * (c / groups); }
};

/// True if a copy of `pixels` pixels, padding included, is in proportion to an image and its outputs. Forms
/// that copy all lines under their windows leave windows that reach far beyond both to the other forms.
inline bool copy_is_proportionate(const ConvShape& s, int64_t pixels) {
  constexpr int64_t kFewPixels = 16384;
  return pixels <= kFewPixels + 8 * (s.h * s.w + s.out_h() * s.out_w());
}

/// Weights of every group as packed right operands [kh * kw * c / groups, oc / groups], `group_floats` apart.
struct PackedConv {
  const float* data = nullptr;
  int64_t group_floats = 0;
  Isa isa = Isa::portable;
  bool by_planes = false;  // packed for a first layer that reads [n, c, h, w] in place
};

size_t packed_conv_bytes(const ConvShape& shape, Isa isa = best_isa());

enum class ImageLayout : uint8_t { nhwc, nchw };

/// ONNX weights [oc, c / groups, kh, kw] for inputs of layout `x_layout`.
struct ConvWeights {
  ConvShape shape;
  const float* data = nullptr;
  ImageLayout x_layout = ImageLayout::nhwc;
  Isa isa = best_isa();
};

/// Packs weights into `memory` (packed_conv_bytes) with the team; meant for load time. Reads and writes them
/// once; only kernels of more than 256 taps take scratch of their size.
PackedConv pack_conv(const ConvWeights& weights, void* memory, base::ThreadPool& pool);
/// The same on the calling thread alone.
PackedConv pack_conv(const ConvShape& shape, const float* weights, void* memory, Isa isa = best_isa(),
                     ImageLayout x_layout = ImageLayout::nhwc);

/// True if pack_conv orders the weights for reading planes in place.
bool conv_packs_planes(const ConvShape& shape, ImageLayout x_layout);

struct ConvArgs {
  ConvShape shape;
  const float* x = nullptr;
  ImageLayout x_layout =
      ImageLayout::nhwc;  // nchw: the layout change is fused into the gathering (first layers)
  PackedConv weights;
  float* y = nullptr;  // always nhwc
  Epilogue epilogue;
};

size_t conv2d_workspace_bytes(const ConvShape& shape, ImageLayout x_layout, int threads);

/// Runs the convolution. Rows of the implicit product are read in place through pointers, or transposed
/// block-wise into the workspace; each output is one multiply-add chain in (kh, kw, c) order whatever the
/// tiling or the team. Taps in the padding are multiplied as zeros, or left out where they are many
/// (conv_inside.h): the shape of one image says which.
void conv2d_nhwc(const ConvArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
