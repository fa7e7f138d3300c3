// Launchers of norms and their gradients.
#pragma once

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// Type of a tensor and of its scale and bias, which is the same or f32.
struct NormTypes {
  tensor::DType x = tensor::DType::f32, scale = tensor::DType::f32;
};

/// 16-bit tensors beside f32 rows; f32: there are none. A gradient that arrives so is of the same type as the
/// rounded result.
struct NormRounding {
  tensor::DType type = tensor::DType::f32;
  bool dy = false;  ///< the gradient that arrives is of `type`
};

/// y = (x - mean) inv_std scale + bias over rows of n; RMS: mean 0. mean, inv_std f32 [rows] or null.
/// y or its rounded form may be null.
struct RowNormArgs {
  NormTypes types;
  NormRounding rounding = {};
  const void *x = nullptr, *scale = nullptr, *bias = nullptr;
  void *y = nullptr, *rounded = nullptr;
  float *mean = nullptr, *inv_std = nullptr;
  int64_t rows = 0, n = 0;
  float epsilon = 1e-5f;
  bool rms = false;
};
void row_norm(tensor::Stream& stream, const RowNormArgs& args);

/// x [rows, n], a row the channels of one group of one image, `points` elements each; `groups` an image.
struct GroupNormArgs {
  NormTypes types;
  const void *x = nullptr, *scale = nullptr, *bias = nullptr;
  void* y = nullptr;
  int64_t rows = 0, n = 0, points = 1, groups = 1;
  float epsilon = 1e-5f;
};
void group_norm(tensor::Stream& stream, const GroupNormArgs& args);

/// dx, dscale [n] and dbias [n] of row_norm. scale (1) and add (0) may be null, and each result.
struct RowNormGradArgs {
  NormTypes types;
  NormRounding rounding = {};
  const void *dy = nullptr, *x = nullptr, *scale = nullptr, *add = nullptr;
  void *dx = nullptr, *rounded = nullptr, *dscale = nullptr, *dbias = nullptr;
  int64_t rows = 0, n = 0;
  float epsilon = 1e-5f;
  bool rms = false;
  void* workspace = nullptr;
};
int64_t row_norm_grad_workspace_bytes(int64_t rows, int64_t n);
void row_norm_grad(tensor::Stream& stream, const RowNormGradArgs& args);

/// Tensors [outer, channels, inner].
struct ChannelNormArgs {
  NormTypes types;
  int64_t outer = 0, channels = 0, inner = 1;
  const void *x = nullptr, *scale = nullptr, *bias = nullptr, *mean = nullptr, *variance = nullptr;
  void* y = nullptr;
  float epsilon = 1e-5f;
};
/// By given statistics.
void channel_norm(tensor::Stream& stream, const ChannelNormArgs& args);

/// By the statistics of the batch, which are results: f32 [channels], variance unbiased.
struct BatchNormArgs {
  NormTypes types;
  int64_t outer = 0, channels = 0, inner = 1;
  const void *x = nullptr, *scale = nullptr, *bias = nullptr, *residual = nullptr;
  void* y = nullptr;
  float *mean = nullptr, *inv_std = nullptr, *variance = nullptr;
  double epsilon = 1e-5;
  bool relu = false;
  void* workspace = nullptr;
};
int64_t batch_norm_workspace_bytes(int64_t outer, int64_t channels, int64_t inner);
void batch_norm_train(tensor::Stream& stream, const BatchNormArgs& args);

/// See cpu/batch_norm_train.h; more, y, dscale, dbias and dresidual may be null.
struct BatchNormGradArgs {
  NormTypes types;
  int64_t outer = 0, channels = 0, inner = 1;
  const void *dy = nullptr, *more = nullptr, *x = nullptr, *y = nullptr, *scale = nullptr, *bias = nullptr;
  const float *mean = nullptr, *inv_std = nullptr;
  void *dx = nullptr, *dscale = nullptr, *dbias = nullptr, *dresidual = nullptr;
  bool relu = false;
  void* workspace = nullptr;
};
void batch_norm_grad(tensor::Stream& stream, const BatchNormGradArgs& args);

}  // namespace trireme::cuda
