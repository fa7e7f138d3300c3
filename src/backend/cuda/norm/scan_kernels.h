// Kernels along one axis of [outer, n, inner]: the place of the largest element, running sums and products.
#pragma once

#include <cstdint>

#include "backend/cuda/norm/reduce_kernels.h"

namespace trireme::cuda {

/// One warp (inner = 1) or one thread a result; sizeof(T) bytes an element.
template <class T>
struct ArgExtreme {
  const T* x;
  int64_t* y;
  int64_t outer, n, inner;
  bool is_max, takes_last, by_warp;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    using A = Total<T>;
    const int width = by_warp ? kWarp : 1;
    const int64_t groups = lane.blocks() * (lane.threads() / width);
    for (int64_t r = lane.block() * (lane.threads() / width) + lane.thread() / width; r < outer * inner;
         r += groups) {
      const T* from = x + r / inner * n * inner + r % inner;
      int64_t place = lane.thread() % width < n ? lane.thread() % width : 0;
      A best = widened(from[place * inner]);
      for (int64_t i = place + width; i < n; i += width) {
        const A c = widened(from[i * inner]);
        if (is_better(c, i, best, place)) best = c, place = i;
      }
      for (int mask = by_warp ? kWarp / 2 : 0; mask > 0; mask /= 2) {
        const A c = lane.shuffle_xor(best, mask);
        const int64_t i = lane.shuffle_xor(place, mask);
        if (is_better(c, i, best, place)) best = c, place = i;
      }
      if (lane.thread() % width == 0) y[r] = place;
    }
  }

 private:
  template <class A>
  TRIREME_DEVICE bool is_better(A c, int64_t i, A best, int64_t place) const {
    const bool wins = (is_max ? c > best : c < best) || (c != c && best == best);
    const bool is_equal = c == best || (c != c && best != best);
    return wins || (is_equal && (takes_last ? i > place : i < place));
  }
};

/// A block a row of n neighbours, kThreads at a time; each chunk's sums double their reach log2 times.
template <class T>
struct ScanRows {
  static constexpr int kThreads = 256;
  using A = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  static constexpr int64_t kSharedBytes = kThreads * static_cast<int64_t>(sizeof(A));
  const T* x;
  T* y;
  int64_t rows, n;
  ScanRule rule;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    A* shared = lane.template shared<A>();
    const int t = lane.thread();
    const A none = rule.is_product ? A(1) : A(0);
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      A carried = none;
      for (int64_t first = 0; first < n; first += kThreads) {
        const int64_t k = first + t, i = row * n + (rule.is_reverse ? n - 1 - k : k);
        shared[t] = k < n ? static_cast<A>(widened(x[i])) : none;
        lane.sync();
        for (int reach = 1; reach < kThreads; reach *= 2) {
          const A before = t >= reach ? shared[t - reach] : none;
          lane.sync();
          shared[t] = joined(before, shared[t]);
          lane.sync();
        }
        const A upto = rule.is_exclusive ? (t == 0 ? none : shared[t - 1]) : shared[t];
        if (k < n) y[i] = static_cast<T>(joined(carried, upto));
        carried = joined(carried, shared[kThreads - 1]);
        lane.sync();
      }
    }
  }

 private:
  TRIREME_DEVICE A joined(A a, A b) const { return rule.is_product ? a * b : a + b; }
};

/// A thread a column of [n, inner].
template <class T>
struct ScanColumns {
  static constexpr bool kIndependent = true;
  using A = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  const T* x;
  T* y;
  int64_t outer, n, inner;
  ScanRule rule;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t c = lane.block() * lane.threads() + lane.thread(); c < outer * inner;
         c += lane.blocks() * lane.threads()) {
      const int64_t first = c / inner * n * inner + c % inner;
      A total = rule.is_product ? A(1) : A(0);
      for (int64_t k = 0; k < n; ++k) {
        const int64_t i = first + (rule.is_reverse ? n - 1 - k : k) * inner;
        const A term = static_cast<A>(widened(x[i]));
        const A next = rule.is_product ? total * term : total + term;
        y[i] = static_cast<T>(rule.is_exclusive ? total : next);
        total = next;
      }
    }
  }
};

}  // namespace trireme::cuda
