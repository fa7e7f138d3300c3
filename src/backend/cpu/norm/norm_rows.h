// Normalisations: layer, RMS, group, instance, batch (inference) and l2 over rows; mean pooling of tokens.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

struct LayerNorm {
  const float* x;  // [rows, cols]
  float* y;        // [rows, cols], may be x
  int64_t rows = 0;
  int64_t cols = 0;
  const float* scale = nullptr;  // [cols] or none
  const float* bias = nullptr;   // [cols] or none
  float eps = 1e-5f;
  const float* residual = nullptr;  // [rows, cols]: x + residual is normalised
  float* sum_out = nullptr;         // [rows, cols]: receives x + residual; may be x or residual
  float* mean_out = nullptr;        // [rows], for the backward pass
  float* inverse_out = nullptr;     // [rows], 1 / sqrt(variance + eps)
};

/// y = (x - mean(x)) / sqrt(mean((x - mean)^2) + eps) * scale + bias over each row, two passes in f32.
/// 8 bytes per element (with residual and sum 16), 8 flop. A row's result does not depend on the other rows.
void layer_norm(const LayerNorm& args, base::ThreadPool& pool);

/// y = x / sqrt(mean(x^2) + eps) * (scale + scale_offset); bias and mean_out are ignored. 8 bytes, 4 flop.
/// Source: Zhang & Sennrich 2019, eq. 4.
void rms_norm(const LayerNorm& args, base::ThreadPool& pool, float scale_offset = 0.0f);

struct GroupNorm {
  const float* x;  // [batch, channels, inner]
  float* y;        // same, may be x
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t inner = 0;             // product of the spatial extents
  int64_t groups = 1;            // divides channels; == channels is instance norm, 1 is layer norm over all
  const float* scale = nullptr;  // [channels]
  const float* bias = nullptr;   // [channels]
  float eps = 1e-5f;
};

/// Normalises each group of channels of each image by its own mean and variance. 8 bytes from cache or 16
/// from memory per element, 6 flop. Throws invalid_argument unless groups divides channels.
void group_norm(const GroupNorm& args, base::ThreadPool& pool);

struct ChannelAffine {
  const float* x;      // [outer, channels, inner]
  float* y;            // same, may be x
  const float* scale;  // [channels]
  const float* bias;   // [channels]
  int64_t outer = 1;   // NCHW: batch; NHWC: batch * height * width with inner = 1
  int64_t channels = 0;
  int64_t inner = 1;
};

/// y = x * scale[c] + bias[c]: batch norm in inference once its statistics are folded. 8 bytes, 2 flop.
void channel_affine(const ChannelAffine& args, base::ThreadPool& pool);

struct BatchNormFold {
  const float* gamma;     // [channels] or none (1)
  const float* beta;      // [channels] or none (0)
  const float* mean;      // [channels]
  const float* variance;  // [channels]
  float eps = 1e-5f;
};

/// scale = gamma / sqrt(variance + eps), bias = beta - mean * scale, for channel_affine or a convolution's
/// weights.
void fold_batch_norm(const BatchNormFold& from, int64_t channels, float* scale, float* bias);

struct L2Rows {
  const float* x;  // [rows, cols]
  float* y;        // [rows, cols], may be x
  int64_t rows = 0;
  int64_t cols = 0;
  float eps = 1e-12f;
};

/// y = x / max(|x|_2, eps) for each row. 8 bytes, 3 flop per element.
void l2_normalize_rows(const L2Rows& args, base::ThreadPool& pool);

struct MeanPool {
  const float* x;     // [batch, tokens, width]
  const float* mask;  // [batch, tokens], weights (0 or 1), or none: all tokens count
  float* y;           // [batch, width]
  int64_t batch = 0;
  int64_t tokens = 0;
  int64_t width = 0;
};

/// y[b] = sum_t mask[b, t] x[b, t] / max(sum_t mask[b, t], 1e-9), tokens in order. 4 bytes, 2 flop per x
/// element; tokens whose weight is 0 are not read (NaN there does no harm).
void mean_pool(const MeanPool& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
