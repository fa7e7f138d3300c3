// Cross entropy of rows of scores with class targets, and its gradient.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/row_kernels.h"

namespace trireme::cuda {

/// The loss of each row of scores: lse - x[target], its lse, and whether the first of the largest scores is
/// the target's. Rows with a target outside [0, n) count nowhere. One pass: maximum and sum are rescaled as
/// they go. sizeof(T) bytes a score. n is at most 2^24.
template <class T>
struct CrossEntropyRows {
  const T* logits;
  const int64_t* target;
  float *loss, *log_sum_exp;
  uint8_t* correct;
  int64_t rows, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T* from = logits + row * n;
      float most = -INFINITY, sum = 0;
      int64_t where = n;
      for_row(lane, from, n, [&](float v, int64_t i) {
        if (v > most) {
          sum = sum * expf(most - v) + 1.0f;
          most = v;
          where = i;
        } else if (v != -INFINITY) {
          sum += expf(v - most);
        }
      });
      const float top = block_reduce(lane, most, scratch, Larger{});
      const float mine = most == -INFINITY ? 0.0f : sum * expf(most - top);
      const float total = block_reduce(lane, mine, scratch, Plus{});
      // The smallest index among those that hold the maximum: the largest of its negative.
      const float index = most == top ? -static_cast<float>(where) : -INFINITY;
      const float best = block_reduce(lane, index, scratch, Larger{});
      if (lane.thread() != 0) continue;
      const int64_t t = target[row];
      const bool counts = t >= 0 && t < n;
      const float lse = top + logf(total);
      log_sum_exp[row] = lse;
      loss[row] = counts ? lse - to_float(from[t]) : 0.0f;
      correct[row] = counts && -best == static_cast<float>(t) ? 1 : 0;
    }
  }
};

/// dx = dloss (exp(x - lse) - [i == target]); 0 in rows that do not count. 2 sizeof(T) bytes a score.
template <class T>
struct CrossEntropyGradRows {
  const T* logits;
  const int64_t* target;
  const float *log_sum_exp, *dloss;  // dloss: one number
  T* dlogits;
  int64_t rows, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const float d = *dloss;
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const int64_t t = target[row];
      const bool counts = t >= 0 && t < n;
      const float lse = log_sum_exp[row];
      map_row(lane, logits + row * n, dlogits + row * n, n, [&](float v, int64_t i) {
        return counts ? d * (expf(v - lse) - (i == t ? 1.0f : 0.0f)) : 0.0f;
      });
    }
  }
};

}  // namespace trireme::cuda
