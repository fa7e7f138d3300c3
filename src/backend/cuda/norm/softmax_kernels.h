// Softmax: one block a row, which stays in registers, or is read once more from the cache where it is wide.
// All sums are in f32 in an order that the row's length and the block's size fix.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/reduce/held_rows.h"
#include "backend/cuda/reduce/rows.h"

namespace trireme::cuda {

/// y = exp(x - max) / sum exp(x - max) of each row [n], or its logarithm. 2 sizeof(T) bytes an element while
/// a row fits the cache. The first row is 16-byte aligned.
template <class T>
struct Softmax {
  const T* x;
  T* y;
  int64_t rows, n;
  bool log = false;

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
      if (log) {
        const float sum = logf(total);
        map_row(lane, from, y + row * n, n, [&](float v, int64_t) { return v - base - sum; });
      } else {
        const float scale = total == 0 ? 0.0f : 1.0f / total;  // a NaN spreads over its row
        map_row(lane, from, y + row * n, n, [&](float v, int64_t) { return expf(v - base) * scale; });
      }
    }
  }
};

/// Softmax of rows in registers: 2 sizeof(T) bytes an element.
template <class T>
struct HeldSoftmax {
  static constexpr int kSteps = kHeldOne.steps;
  Softmax<T> of;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    HeldReduce<Lane> reduce(lane);
    const int64_t n = of.n;
    for (int64_t row = lane.block(); row < of.rows; row += lane.blocks()) {
      float v[kSteps * kHeldStep] = {};
      load_held<kSteps>(lane, of.x + row * n, n, v);
      float most = -INFINITY, total = 0;
      for_held<kSteps>(lane, n, [&](int slot) { most = v[slot] > most ? v[slot] : most; });
      most = reduce.one(most, Larger{});
      const float base = most == -INFINITY ? 0.0f : most;
      for_held<kSteps>(lane, n, [&](int slot) {
        v[slot] -= base;
        const float power = expf(v[slot]);
        total += power;
        if (!of.log) v[slot] = power;
      });
      total = reduce.one(total, Plus{});
      const float sum = logf(total), scale = total == 0 ? 0.0f : 1.0f / total;
      for_held<kSteps>(lane, n, [&](int slot) { v[slot] = of.log ? v[slot] - sum : v[slot] * scale; });
      store_held<kSteps>(lane, v, of.y + row * n, n);
    }
  }
};

/// dx = y (dy - sum dy y), or with y the logarithms dy - e^y sum dy, of each row. 3 sizeof(T) bytes an
/// element.
template <class T>
struct SoftmaxGrad {
  const T *dy, *y;
  T* dx;
  int64_t rows, n;
  bool log = false;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T *grad = dy + row * n, *out = y + row * n;
      float total = 0;
      for_row(lane, grad, n, [&](float d, int64_t i) { total += log ? d : d * to_float(out[i]); });
      total = block_reduce(lane, total, scratch, Plus{});
      map_row(lane, grad, dx + row * n, n, [&](float d, int64_t i) {
        const float v = to_float(out[i]);
        return log ? d - expf(v) * total : v * (d - total);
      });
    }
  }
};

/// SoftmaxGrad of rows in registers: 3 sizeof(T) bytes an element.
template <class T>
struct HeldSoftmaxGrad {
  static constexpr int kSteps = kHeldTwo.steps;
  SoftmaxGrad<T> of;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    HeldReduce<Lane> reduce(lane);
    const int64_t n = of.n;
    for (int64_t row = lane.block(); row < of.rows; row += lane.blocks()) {
      float d[kSteps * kHeldStep] = {}, y[kSteps * kHeldStep] = {};
      load_held<kSteps>(lane, of.dy + row * n, n, d);
      load_held<kSteps>(lane, of.y + row * n, n, y);
      float total = 0;
      for_held<kSteps>(lane, n, [&](int slot) { total += of.log ? d[slot] : d[slot] * y[slot]; });
      total = reduce.one(total, Plus{});
      for_held<kSteps>(lane, n, [&](int slot) {
        d[slot] = of.log ? d[slot] - expf(y[slot]) * total : y[slot] * (d[slot] - total);
      });
      store_held<kSteps>(lane, d, of.dx + row * n, n);
    }
  }
};

/// The above along an axis whose elements are `inner` apart: a thread a line, neighbouring lines
/// together.
template <class T>
struct SoftmaxLines {
  const T *x, *dy;  // dy: null forward; x is then the operand, else the result
  T* y;
  int64_t outer, n, inner;
  bool log = false;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t step = lane.blocks() * lane.threads();
    for (int64_t line = lane.block() * lane.threads() + lane.thread(); line < outer * inner; line += step) {
      const int64_t at = line / inner * n * inner + line % inner;
      dy == nullptr ? forward(at) : backward(at);
    }
  }

 private:
  TRIREME_DEVICE void forward(int64_t at) const {
    float most = -INFINITY, total = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float v = to_float(x[at + i * inner]);
      most = v > most ? v : most;
    }
    const float base = most == -INFINITY ? 0.0f : most;
    for (int64_t i = 0; i < n; ++i) total += expf(to_float(x[at + i * inner]) - base);
    const float sum = logf(total), scale = total == 0 ? 0.0f : 1.0f / total;
    for (int64_t i = 0; i < n; ++i) {
      const float v = to_float(x[at + i * inner]) - base;
      y[at + i * inner] = from_float<T>(log ? v - sum : expf(v) * scale);
    }
  }
  TRIREME_DEVICE void backward(int64_t at) const {
    float total = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float d = to_float(dy[at + i * inner]);
      total += log ? d : d * to_float(x[at + i * inner]);
    }
    for (int64_t i = 0; i < n; ++i) {
      const float v = to_float(x[at + i * inner]), d = to_float(dy[at + i * inner]);
      y[at + i * inner] = from_float<T>(log ? d - expf(v) * total : v * (d - total));
    }
  }
};

}  // namespace trireme::cuda
