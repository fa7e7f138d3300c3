// Convolutions on the device: forward, towards the data and towards the weights, with a plan for each shape.
// cuDNN's in builds with the toolkit, where it takes the shape; else a plain kernel of ours.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "backend/cuda/dense/activation.h"
#include "backend/cuda/dense/gemm.h"

namespace trireme::cuda {

enum class ConvolutionKind : uint8_t { forward, data, weights };

/// x [batch, channels, in...] and y [batch, filters, out...], or channels last; weights always [filters,
/// channels / groups, kernel...]. Spatial axes are padded in front to three.
struct ConvolutionShape {
  ConvolutionKind kind = ConvolutionKind::forward;
  tensor::DType type = tensor::DType::f32;  ///< f32, f16 or bf16; sums are f32
  int64_t batch = 0, channels = 0, filters = 0, groups = 1;
  std::array<int64_t, 3> in{1, 1, 1}, kernel{1, 1, 1}, out{1, 1, 1};
  /// y[o] meets x[o stride - pad + tap dilation]; what lies outside of x is 0.
  std::array<int64_t, 3> stride{1, 1, 1}, dilation{1, 1, 1}, pad{0, 0, 0};
  bool x_channels_last = false, y_channels_last = false;
  /// Finish of the result (y forward, x of data): act(z + bias [channels of the result] + residual), or
  /// act(z + bias) + residual.
  bool bias = false, residual = false, act_before_residual = false;
  ActivationForm act;

  int64_t in_points() const { return in[0] * in[1] * in[2]; }
  int64_t out_points() const { return out[0] * out[1] * out[2]; }
  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t x_elements() const { return batch * channels * in_points(); }
  int64_t y_elements() const { return batch * filters * out_points(); }
  int64_t w_elements() const { return filters * (channels / groups) * taps(); }
};

/// The kind says which of x, w and y is written. bias and residual as the shape says.
struct ConvolutionPointers {
  const void *x = nullptr, *w = nullptr, *y = nullptr;
  void* result = nullptr;
  const void *bias = nullptr, *residual = nullptr;
};

/// A convolution whose algorithm is chosen. Any thread may run it.
class ConvolutionPlan {
 public:
  virtual ~ConvolutionPlan() = default;
  virtual int64_t workspace_bytes() const = 0;
  /// In stream order; does not allocate, can be recorded.
  virtual void run(tensor::Stream& stream, const ConvolutionPointers& pointers, void* workspace) const = 0;
};

std::shared_ptr<const ConvolutionPlan> prepare_convolution(const GemmPlace& place,
                                                           const ConvolutionShape& shape);

/// What prepare_convolution asks of cuDNN: the convolution with all of its finish, or null. Null always in
/// builds without it (cudnn_none.cc).
std::unique_ptr<ConvolutionPlan> make_convolution(const GemmPlace& place, const ConvolutionShape& shape);

/// The plain kernel, without a finish: any shape.
void convolve(tensor::Stream& stream, const ConvolutionShape& shape, const ConvolutionPointers& pointers);

/// out = act(out + bias [channel] + residual) and so on, over [outer, channels, inner].
struct ChannelFinishArgs {
  void* out = nullptr;
  const void *bias = nullptr, *residual = nullptr;
  int64_t outer = 0, channels = 0, inner = 1;
  ActivationForm act;
  bool act_before_residual = false;
};
void finish_channels(tensor::Stream& stream, tensor::DType type, const ChannelFinishArgs& args);

}  // namespace trireme::cuda
