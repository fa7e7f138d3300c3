// Batch normalisation in training: statistics of the batch, the normalised result, and the gradients of both.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// A tensor [outer, channels, inner] normalised per channel; inner == 1 is channels last.
struct ChannelShape {
  int64_t outer = 0, channels = 0, inner = 1;
  int64_t count() const { return outer * inner; }  // values behind one channel's statistics
  int64_t elements() const { return outer * channels * inner; }
};

/// Bytes of workspace that both functions below need for a shape.
int64_t batch_norm_workspace(const ChannelShape& shape);

struct BatchNormTrain {
  ChannelShape shape;
  const float* x;
  const float* scale;               // [channels]
  const float* bias;                // [channels]
  const float* residual = nullptr;  // like x, added before the rectifier
  float* y;                         // like x, may be x or residual
  float* mean;                      // [channels]
  float* inv_std;                   // [channels]: 1 / sqrt(variance + eps), the variance over count()
  float* variance_unbiased;         // [channels]: over count() - 1
  double eps = 1e-5;
  bool relu = false;
  void* workspace;
};

/// y = relu?((x - mean) inv_std scale + bias + residual?). Reads x twice and writes y once: 12 bytes (with
/// residual 16) and 9 flop per element. Sums run in f32 over at most 256 values around a sampled centre, in
/// double above; their order depends on the shape alone.
void batch_norm_train(const BatchNormTrain& args, base::ThreadPool& pool);

struct BatchNormGrad {
  ChannelShape shape;
  const float* dy;
  const float* dy_more = nullptr;  // like x: a second part of dy
  const float* x;
  const float* scale;          // [channels]
  const float* bias;           // [channels]: the rectifier's mask is computed from x again
  const float* mean;           // [channels]
  const float* inv_std;        // [channels]
  const float* y = nullptr;    // like x: where a residual was added, the mask is y > 0
  float* dx;                   // like x, may be dy or x
  float* dscale;               // [channels]
  float* dbias;                // [channels]
  float* dresidual = nullptr;  // like x, may be dy: the gradient behind the rectifier
  bool relu = false;
  void* workspace;
};

/// g = dy where the rectifier let through; dbias = sum g, dscale = sum g xhat,
/// dx = scale inv_std (g - mean(g) - xhat mean(g xhat)). 20 bytes and 14 flop per element; with y and
/// dresidual 28 bytes, a second part of dy adds 4. Source: Ioffe & Szegedy 2015, section 3.
void batch_norm_grad(const BatchNormGrad& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
