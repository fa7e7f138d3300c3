// Softmax and log-softmax over rows or over an inner axis, with optional scale and additive mask.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// Where the additive mask row of each data row lies. A data row has index (i, j, k) in [outer, middle,
/// inner] row order (for attention scores: batch, head, query); a stride of 0 shares the mask along that
/// index.
struct SoftmaxMask {
  const float* data = nullptr;  // added after scaling; -inf excludes an element
  int64_t middle = 1;           // extent of j
  int64_t inner = 1;            // extent of k
  int64_t stride_outer = 0;     // floats between mask rows of i and i + 1
  int64_t stride_middle = 0;
  int64_t stride_inner = 0;
};

struct SoftmaxRows {
  const float* x;  // [rows, cols]
  float* y;        // [rows, cols], may be x
  int64_t rows = 0;
  int64_t cols = 0;
  float scale = 1.0f;  // y = softmax(scale * x + mask)
  SoftmaxMask mask;
  bool log = false;  // log-softmax
};

/// Softmax over the last axis. One row is one fixed-order reduction in f32. A masked row without any finite
/// element gives zeros (log: -inf); without a mask it gives NaN, as the formula does.
/// 8 bytes per element (4 more with a mask of its own), 22 flop; rows longer than L1 are read three times.
void softmax_rows(const SoftmaxRows& args, base::ThreadPool& pool);

struct SoftmaxAxis {
  const float* x;  // [outer, axis, inner]
  float* y;        // [outer, axis, inner], may be x
  int64_t outer = 1;
  int64_t axis = 0;
  int64_t inner = 1;
  bool log = false;
};

/// Softmax over the middle axis; inner == 1 is softmax_rows. 8 bytes per element, 22 flop.
void softmax_axis(const SoftmaxAxis& args, base::ThreadPool& pool);

/// Gradient of softmax over rows: dx = y * (dy - sum(dy * y)); of log-softmax: dx = dy - exp(y) * sum(dy).
struct SoftmaxGrad {
  const float* y;   // [rows, cols], the forward result
  const float* dy;  // [rows, cols]
  float* dx;        // [rows, cols], may be dy
  int64_t rows = 0;
  int64_t cols = 0;
  float scale = 1.0f;  // dx is multiplied by the forward scale
  bool log = false;
};

/// 12 bytes and 5 flop (log: 19) per element.
void softmax_rows_grad(const SoftmaxGrad& args, base::ThreadPool& pool);

struct SoftmaxAxisGrad {
  const float* y;   // [outer, axis, inner], the forward result
  const float* dy;  // [outer, axis, inner]
  float* dx;        // [outer, axis, inner], may be dy
  int64_t outer = 1;
  int64_t axis = 0;
  int64_t inner = 1;
  bool log = false;
};

/// The gradient over the middle axis; inner == 1 is softmax_rows_grad. Cost as there.
void softmax_axis_grad(const SoftmaxAxisGrad& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
