// Kernels over rows: one block a row, which stays in registers or is read once more from the cache. All sums
// are in f32 in an order that the row's length and the block's size fix.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/scalar.h"

namespace trireme::cuda {

struct Plus {
  TRIREME_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct Larger {
  TRIREME_DEVICE float operator()(float a, float b) const { return a > b ? a : b; }
};

/// f(value, index) of this thread's elements of a row.
template <class T, class Lane, class F>
TRIREME_DEVICE void for_row(const Lane& lane, const T* row, int64_t n, F f) {
  if (n % kPack<T> != 0) {  // such rows are not aligned
    for (int64_t i = lane.thread(); i < n; i += lane.threads()) f(to_float(row[i]), i);
    return;
  }
  const int64_t step = static_cast<int64_t>(lane.threads()) * kPack<T>;
  for (int64_t i = static_cast<int64_t>(lane.thread()) * kPack<T>; i < n; i += step) {
    float v[kPack<T>];
    load_pack(row + i, kPack<T>, v);
    for (int j = 0; j < kPack<T>; ++j) f(v[j], i + j);
  }
}

/// out[i] = f(row[i], i).
template <class T, class Lane, class F>
TRIREME_DEVICE void map_row(const Lane& lane, const T* row, T* out, int64_t n, F f) {
  if (n % kPack<T> != 0) {
    for (int64_t i = lane.thread(); i < n; i += lane.threads())
      out[i] = from_float<T>(f(to_float(row[i]), i));
    return;
  }
  const int64_t step = static_cast<int64_t>(lane.threads()) * kPack<T>;
  for (int64_t i = static_cast<int64_t>(lane.thread()) * kPack<T>; i < n; i += step) {
    float v[kPack<T>];
    load_pack(row + i, kPack<T>, v);
    for (int j = 0; j < kPack<T>; ++j) v[j] = f(v[j], i + j);
    store_pack(v, kPack<T>, out + i);
  }
}

/// y = exp(x - max) / sum exp(x - max) of each row [n]. 2 sizeof(T) bytes an element while a row fits the
/// cache. The first row is 16-byte aligned.
template <class T>
struct Softmax {
  const T* x;
  T* y;
  int64_t rows, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T* from = x + row * n;
      float most = -INFINITY;
      for_row(lane, from, n, [&](float v, int64_t) { most = v > most ? v : most; });
      most = block_reduce(lane, most, scratch, Larger{});
      // A row of nothing but -inf has no probabilities: zeros, as a fully masked row of attention.
      const float base = most == -INFINITY ? 0.0f : most;
      float total = 0;
      for_row(lane, from, n, [&](float v, int64_t) { total += expf(v - base); });
      total = block_reduce(lane, total, scratch, Plus{});
      const float scale = total > 0 ? 1.0f / total : 0.0f;
      map_row(lane, from, y + row * n, n, [&](float v, int64_t) { return expf(v - base) * scale; });
    }
  }
};

/// y = (x - mean) inv_std scale + bias; the statistics of each row are kept for the backward pass. Two passes
/// over the row: the variance is of differences from the mean. 2 sizeof(T) bytes an element.
template <class T>
struct LayerNorm {
  const T* x;
  const float *scale, *bias;  // [n]; bias may be null
  T* y;
  float *mean, *inv_std;  // [rows] or null
  int64_t rows, n;
  float epsilon;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T* from = x + row * n;
      float total = 0, squares = 0;
      for_row(lane, from, n, [&](float v, int64_t) { total += v; });
      const float m = block_reduce(lane, total, scratch, Plus{}) / static_cast<float>(n);
      for_row(lane, from, n, [&](float v, int64_t) { squares += (v - m) * (v - m); });
      const float variance = block_reduce(lane, squares, scratch, Plus{}) / static_cast<float>(n);
      const float r = 1.0f / sqrtf(variance + epsilon);
      map_row(lane, from, y + row * n, n, [&](float v, int64_t i) {
        return (v - m) * r * scale[i] + (bias != nullptr ? bias[i] : 0.0f);
      });
      if (lane.thread() == 0 && mean != nullptr) mean[row] = m;
      if (lane.thread() == 0 && inv_std != nullptr) inv_std[row] = r;
    }
  }
};

/// dx = inv_std (g - mean(g) - xhat mean(g xhat)), g = dy scale, of each row. 3 sizeof(T) bytes an element.
template <class T>
struct LayerNormGradX {
  const T *dy, *x;
  const float *scale, *mean, *inv_std;
  T* dx;
  int64_t rows, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T *from = x + row * n, *grad = dy + row * n;
      const float m = mean[row], r = inv_std[row];
      float plain = 0, along = 0;
      for_row(lane, grad, n, [&](float d, int64_t i) {
        const float g = d * scale[i];
        plain += g;
        along += g * (to_float(from[i]) - m) * r;
      });
      plain = block_reduce(lane, plain, scratch, Plus{}) / static_cast<float>(n);
      along = block_reduce(lane, along, scratch, Plus{}) / static_cast<float>(n);
      map_row(lane, grad, dx + row * n, n, [&](float d, int64_t i) {
        return r * (d * scale[i] - plain - (to_float(from[i]) - m) * r * along);
      });
    }
  }
};

/// Sums over rows of one column block each, in pieces of kPieceRows rows: partial [pieces, n]; the second
/// launch adds the pieces in their order. dscale = sum dy xhat, dbias = sum dy.
template <class T>
struct LayerNormGradScale {
  static constexpr int64_t kPieceRows = 128;
  const T *dy, *x;
  const float *mean, *inv_std;
  float *scale_pieces, *bias_pieces;  // [ceil(rows / kPieceRows), n]
  int64_t rows, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t column_blocks = (n + lane.threads() - 1) / lane.threads();
    const int64_t piece = lane.block() / column_blocks;
    const int64_t column = lane.block() % column_blocks * lane.threads() + lane.thread();
    if (column >= n) return;
    const int64_t last = (piece + 1) * kPieceRows < rows ? (piece + 1) * kPieceRows : rows;
    float along = 0, plain = 0;
    for (int64_t row = piece * kPieceRows; row < last; ++row) {
      const float d = to_float(dy[row * n + column]);
      along += d * (to_float(x[row * n + column]) - mean[row]) * inv_std[row];
      plain += d;
    }
    scale_pieces[piece * n + column] = along;
    bias_pieces[piece * n + column] = plain;
  }
};

/// out[i] = sum over pieces of in[piece, i], in their order.
struct SumPieces {
  const float* in;
  float* out;
  int64_t pieces, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < n; i += stride) {
      float total = 0;
      for (int64_t p = 0; p < pieces; ++p) total += in[p * n + i];
      out[i] = total;
    }
  }
};

/// y = x scale / sqrt(mean(x^2) + epsilon) of each row. 2 sizeof(T) bytes an element.
template <class T>
struct RmsNorm {
  const T* x;
  const float* scale;
  T* y;
  float* inv_rms;  // [rows] or null
  int64_t rows, n;
  float epsilon;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      float squares = 0;
      for_row(lane, x + row * n, n, [&](float v, int64_t) { squares += v * v; });
      const float mean = block_reduce(lane, squares, scratch, Plus{}) / static_cast<float>(n);
      const float r = 1.0f / sqrtf(mean + epsilon);
      map_row(lane, x + row * n, y + row * n, n, [&](float v, int64_t i) { return v * r * scale[i]; });
      if (lane.thread() == 0 && inv_rms != nullptr) inv_rms[row] = r;
    }
  }
};

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
