// Kernels whose elements follow from their places. Unit: an unsigned integer as wide as an element.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/elementwise/element_kernels.h"
#include "backend/cuda/index/fill.h"

namespace trireme::cuda {

/// f(i) for this thread's share of n.
template <class Lane, class F>
TRIREME_DEVICE void for_each_place(const Lane& lane, int64_t n, F f) {
  const int64_t step = lane.blocks() * lane.threads();
  for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < n; i += step) f(i);
}

/// C: f64, or i64 for integers.
template <class C>
struct Range {
  static constexpr bool kIndependent = true;
  const void *start, *delta;
  void* y;
  tensor::DType type;
  int64_t n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const C first = load_element<C>(type, start, 0), by = load_element<C>(type, delta, 0);
    for_each_place(lane, n, [&](int64_t i) { store_element<C>(type, y, i, first + static_cast<C>(i) * by); });
  }
};

struct Eye {
  static constexpr bool kIndependent = true;
  void* y;
  tensor::DType type;
  int64_t rows, columns, k;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for_each_place(lane, rows * columns, [&](int64_t i) {
      store_element<int64_t>(type, y, i, i % columns - i / columns == k ? 1 : 0);
    });
  }
};

/// 2 sizeof(Unit) bytes an element that is kept, one that is not.
template <class Unit>
struct Trilu {
  static constexpr bool kIndependent = true;
  TriluArgs args;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t k = args.k == nullptr ? 0 : *args.k, rows = args.rows, columns = args.columns;
    for_each_place(lane, args.count * rows * columns, [&](int64_t i) {
      const int64_t column = i % columns, row = i / columns % rows;
      // Compared without row + k, which may overflow.
      const bool is_kept = args.is_upper ? column - row >= k : column - row <= k;
      static_cast<Unit*>(args.y)[i] = is_kept ? static_cast<const Unit*>(args.x)[i] : Unit(0);
    });
  }
};

template <class Unit>
struct OneHot {
  static constexpr bool kIndependent = true;
  OneHotArgs args;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const auto* values = static_cast<const Unit*>(args.values);
    const Unit off = values[0], on = values[1];
    for_each_place(lane, args.outer * args.depth * args.inner, [&](int64_t i) {
      const int64_t inner = i % args.inner, place = i / args.inner % args.depth;
      const int64_t at = i / args.inner / args.depth * args.inner + inner;
      int64_t hot = is_real() ? static_cast<int64_t>(load_element<double>(args.index_type, args.index, at))
                              : load_element<int64_t>(args.index_type, args.index, at);
      hot += hot < 0 ? args.depth : 0;
      static_cast<Unit*>(args.y)[i] = hot == place ? on : off;
    });
  }

 private:
  TRIREME_DEVICE bool is_real() const {
    using tensor::DType;
    return args.index_type == DType::f32 || args.index_type == DType::f64 || args.index_type == DType::f16 ||
           args.index_type == DType::bf16;
  }
};

template <class Unit>
struct ReverseRuns {
  static constexpr bool kIndependent = true;
  ReverseArgs args;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t second = args.batch_first ? args.time : args.batch;
    for_each_place(lane, args.time * args.batch * args.row_units, [&](int64_t i) {
      const int64_t unit = i % args.row_units, row = i / args.row_units;
      const int64_t batch = args.batch_first ? row / second : row % second;
      const int64_t time = args.batch_first ? row % second : row / second;
      int64_t length = args.lengths[batch];
      length = length < 0 ? 0 : length < args.time ? length : args.time;
      const int64_t from = time < length ? length - 1 - time : time;
      const int64_t at = args.batch_first ? batch * second + from : from * second + batch;
      static_cast<Unit*>(args.y)[i] = static_cast<const Unit*>(args.x)[at * args.row_units + unit];
    });
  }
};

/// A thread an element of dx; the places of dy that were copied from it are one run or two progressions.
template <class From, class To>
struct PadGrad {
  static constexpr bool kIndependent = true;
  PadGradAxis args;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for_each_place(lane, args.outer * args.n * args.inner, [&](int64_t i) {
      const int64_t inner = i % args.inner, at = i / args.inner % args.n, outer = i / args.inner / args.n;
      const From* dy = static_cast<const From*>(args.dy) + outer * args.padded * args.inner + inner;
      float sum = 0;
      for (int64_t j = first_from(0, at); j < args.padded; j = first_from(j + 1, at))
        sum += to_float(dy[j * args.inner]);
      static_cast<To*>(args.dx)[i] = from_float<To>(sum);
    });
  }

 private:
  /// The first place from j on that padding copied from `at`, or one past the end.
  TRIREME_DEVICE int64_t first_from(int64_t j, int64_t at) const {
    const int64_t own = at + args.before;
    if (args.mode == PadMode::edge) {
      if (at == 0 && j <= args.before) return j;
      if (at == args.n - 1 && j >= own) return j;
      return own >= j ? own : args.padded;
    }
    if (args.n == 1) return j;
    const int64_t period = args.mode == PadMode::wrap ? args.n : 2 * (args.n - 1);
    const int64_t next = on_or_after(j, own, period);
    if (args.mode == PadMode::wrap) return next;
    const int64_t mirrored = on_or_after(j, args.before - at, period);
    return next < mirrored ? next : mirrored;
  }
  /// The least of own + m period that is not below j.
  static TRIREME_DEVICE int64_t on_or_after(int64_t j, int64_t own, int64_t period) {
    const int64_t past = (own - j) % period;
    return j + (past < 0 ? past + period : past);
  }
};

}  // namespace trireme::cuda
