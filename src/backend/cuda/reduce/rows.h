// A block over a row: what its threads take of it, and in which order.
#pragma once

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

}  // namespace trireme::cuda
