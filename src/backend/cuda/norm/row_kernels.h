// Kernels over rows: one block a row, which stays in registers or is read once more from the cache. All sums
// are in f32 in an order that the row's length and the block's size fix.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/step.h"

namespace trireme::cuda {

struct Plus {
  TRIREME_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct Larger {
  TRIREME_DEVICE float operator()(float a, float b) const { return a > b ? a : b; }
};

/// f(value, index) of this thread's elements of a row, kStep at a time: which elements are a thread's, and so
/// the order of a sum, follows from kStep and the block's size, not from T.
template <int kStep, class T, class Lane, class F>
TRIREME_DEVICE void for_row_by(const Lane& lane, const T* row, int64_t n, F f) {
  if (n % kStep != 0) {  // such rows are not aligned
    for (int64_t i = lane.thread(); i < n; i += lane.threads()) f(to_float(row[i]), i);
    return;
  }
  const int64_t step = static_cast<int64_t>(lane.threads()) * kStep;
  for (int64_t i = static_cast<int64_t>(lane.thread()) * kStep; i < n; i += step) {
    float v[kStep];
    load_step<kStep>(row + i, v);
    for (int j = 0; j < kStep; ++j) f(v[j], i + j);
  }
}
template <class T, class Lane, class F>
TRIREME_DEVICE void for_row(const Lane& lane, const T* row, int64_t n, F f) {
  for_row_by<kPack<T>>(lane, row, n, f);
}

/// A row of `n`, and where its results go: as T, and rounded to R. Either may be null.
template <class From, class T, class R>
struct RoundedRow {
  const From* row;
  T* out;
  R* rounded;
  int64_t n;
};

/// out[i] = f(row[i], i), and rounded[i] the same as R.
template <int kStep, class From, class T, class R, class Lane, class F>
TRIREME_DEVICE void map_row_rounded(const Lane& lane, const RoundedRow<From, T, R>& along, F f) {
  const auto [row, out, rounded, n] = along;
  if (n % kStep != 0) {
    for (int64_t i = lane.thread(); i < n; i += lane.threads()) {
      const float v = f(to_float(row[i]), i);
      if (out != nullptr) out[i] = from_float<T>(v);
      if (rounded != nullptr) rounded[i] = from_float<R>(v);
    }
    return;
  }
  const int64_t step = static_cast<int64_t>(lane.threads()) * kStep;
  for (int64_t i = static_cast<int64_t>(lane.thread()) * kStep; i < n; i += step) {
    float v[kStep];
    load_step<kStep>(row + i, v);
    for (int j = 0; j < kStep; ++j) v[j] = f(v[j], i + j);
    if (out != nullptr) store_step<kStep>(v, out + i);
    if (rounded != nullptr) store_step<kStep>(v, rounded + i);
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
        const float scale = total > 0 ? 1.0f / total : 0.0f;
        map_row(lane, from, y + row * n, n, [&](float v, int64_t) { return expf(v - base) * scale; });
      }
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

/// The four above along an axis whose elements are `inner` apart: a thread a line, neighbouring lines
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
    const float sum = logf(total), scale = total > 0 ? 1.0f / total : 0.0f;
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
