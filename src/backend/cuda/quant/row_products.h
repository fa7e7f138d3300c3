// Products of few rows with weights that are read once: bound by the bytes of the weights, with what stands
// before and behind them in the same launch.
#pragma once

#include <cstdint>

#include "backend/cuda/dense/activation.h"
#include "backend/cuda/device/on.h"

namespace trireme::cuda {

inline constexpr int kMostRowProducts = 3;  ///< weights of one launch
inline constexpr int kMostProductRows = 8;  ///< rows that read a weight once together
/// Of normalised rows, which a block keeps; beside f16 weights it keeps sums of its warps too.
inline constexpr int64_t kNormRowBytes = 96 << 10, kNormTileBytes = 92 << 10;

/// A weight [n, k] of `on.dtype`, or as docs/formats.md stores it in 8 or 4 bits with its scales and zero
/// points (or null).
struct RowWeight {
  const void* w = nullptr;
  const float* scale = nullptr;
  const int8_t* zero = nullptr;
  const void* bias = nullptr;  ///< [n] of `on.dtype`, or null
  void* y = nullptr;           ///< [rows, n] of `on.dtype`
  int64_t n = 0;
};

/// y_i = finish(norm(x) w_i' + bias_i) for each weight; with `gated` weights 0 and 1 make one result,
/// y_0 = act(norm(x) w_0' + bias_0) (norm(x) w_1' + bias_1), each factor rounded as a result of its own is.
/// norm: RMS norm with `norm_scale` [k], its rows rounded to `on.dtype`; null: x as it is. finish:
/// act(z + residual), or act(z) + residual. k is a multiple of what 16 bytes of weights hold.
struct RowProductArgs {
  const void* x = nullptr;  ///< [rows, k]
  const void* norm_scale = nullptr;
  bool is_scale_f32 = true;  ///< else of `on.dtype`
  float epsilon = 0;
  RowWeight weights[kMostRowProducts];
  int count = 1;
  int64_t k = 0;
  int rows = 1;       ///< at most kMostProductRows
  int bits = 0;       ///< 8, 4, or 0: floats
  int64_t group = 0;  ///< neighbours along k that share a scale
  bool gated = false;
  bool is_constant = false;        ///< no launch writes the weights: they may be read before earlier ones end
  const void* residual = nullptr;  ///< [rows, n], or null
  ActivationForm act;
  bool act_before_residual = false;
};
void row_products(On on, const RowProductArgs& args);

}  // namespace trireme::cuda
