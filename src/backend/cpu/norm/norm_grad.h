// Gradients of layer norm and RMS norm: one pass over memory, statistics computed again while a row is in L1.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

struct NormGrad {
  const float* dy;               // [rows, cols]
  const float* x;                // [rows, cols]: what was normalised
  const float* scale = nullptr;  // [cols] or none (1)
  const float* add = nullptr;    // [rows, cols] or none: the gradient that reached x on another way
  float* dx;                     // [rows, cols], may be dy, x or add
  float* dscale = nullptr;       // [cols] or not wanted
  float* dbias = nullptr;        // [cols] or not wanted
  int64_t rows = 0, cols = 0;
  float eps = 1e-5f;
  bool rms = false;  // no mean, no bias
  void* workspace;   // norm_grad_workspace bytes
};

int64_t norm_grad_workspace(int64_t rows, int64_t cols);

/// With xhat = (x - mean) inverse and g = dy scale: dx = inverse (g - mean(g) - xhat mean(g xhat)) + add
/// (RMS: without mean(g)), dscale = sum over rows of dy xhat, dbias = sum of dy. 12 bytes (with add 16) and
/// 17 flop per element. The order of the sums over rows depends on the extents alone.
void norm_grad(const NormGrad& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
