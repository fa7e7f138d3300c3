// Kernels of joined updates: updates sorted by the slice they go to, then each slice with its run of updates.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/index/index_kernels.h"

namespace trireme::cuda {

/// keys[i] = slice of y that update i goes to, and i; what goes nowhere sorts last.
struct ScatterKeys {
  static constexpr bool kIndependent = true;
  IndexedPlaces places;
  uint64_t* keys;
  int64_t items, slice, padded;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < padded; i += stride) {
      const int64_t to = i < items ? places.place(i) : -1;
      keys[i] = to < 0 ? ~uint64_t{0} : static_cast<uint64_t>(to / slice) << 32 | static_cast<uint64_t>(i);
    }
  }
};

/// A thread an element of an update; the first of a run of equal slices joins them all.
template <class T>
struct JoinRuns {
  static constexpr bool kIndependent = true;
  // Integers wrap around.
  using A =
      std::conditional_t<std::is_integral_v<T>, uint64_t, std::conditional_t<sizeof(T) == 8, double, float>>;
  const uint64_t* keys;
  const T* updates;
  T* y;
  Divider slice;
  int64_t items, total;
  ScatterJoin join;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < total; i += stride) {
      int64_t start = i;
      const int64_t along = slice.step(start);
      const uint64_t to = keys[start] >> 32;
      if (to == 0xffffffffu || (start > 0 && keys[start - 1] >> 32 == to)) continue;
      T& at = y[static_cast<int64_t>(to) * slice.divisor() + along];
      A all = wide(at);
      for (int64_t j = start; j < items && keys[j] >> 32 == to; ++j)
        all =
            joined(all, wide(updates[static_cast<int64_t>(keys[j] & 0xffffffffu) * slice.divisor() + along]));
      at = static_cast<T>(all);
    }
  }

 private:
  static TRIREME_DEVICE A wide(T v) { return static_cast<A>(v); }
  TRIREME_DEVICE A joined(A a, A b) const {
    switch (join) {
      case ScatterJoin::add: return a + b;
      case ScatterJoin::mul: return a * b;
      case ScatterJoin::max: return is_less(a, b) ? b : a;
      case ScatterJoin::min: return is_less(b, a) ? b : a;
    }
    return a;
  }
  /// Of integers as signed ones.
  static TRIREME_DEVICE bool is_less(A a, A b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<int64_t>(a) < static_cast<int64_t>(b);
    } else {
      return a < b;
    }
  }
};

}  // namespace trireme::cuda
