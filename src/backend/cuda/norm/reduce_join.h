// How the totals of a reduction join, and what they are summed in.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "backend/cuda/device/lane.h"

namespace trireme::cuda {

/// What terms are summed in: f32 for 16- and 32-bit floats, f64, i64.
template <class T>
using Total = std::conditional_t<std::is_same_v<T, double>, double,
                                 std::conditional_t<std::is_integral_v<T>, int64_t, float>>;

template <class T>
TRIREME_DEVICE Total<T> widened(T x) {
  return static_cast<Total<T>>(x);
}

// How two totals join. start() joins to no effect.
template <class A>
struct JoinSum {
  using Value = A;
  static TRIREME_DEVICE A start() { return A(0); }
  static TRIREME_DEVICE A of(A term) { return term; }
  static TRIREME_DEVICE A join(A a, A b) {
    if constexpr (std::is_integral_v<A>)
      return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    return a + b;
  }
};
template <class A>
struct JoinProduct {
  using Value = A;
  static TRIREME_DEVICE A start() { return A(1); }
  static TRIREME_DEVICE A of(A term) { return term; }
  static TRIREME_DEVICE A join(A a, A b) {
    if constexpr (std::is_integral_v<A>)
      return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    return a * b;
  }
};
/// NaN if either is.
template <class A>
struct JoinMax {
  using Value = A;
  using Limits = std::numeric_limits<A>;
  static constexpr A kLeast = std::is_integral_v<A> ? Limits::lowest() : -Limits::infinity();
  static TRIREME_DEVICE A start() { return kLeast; }
  static TRIREME_DEVICE A of(A term) { return term; }
  static TRIREME_DEVICE A join(A a, A b) { return b > a || b != b ? b : a; }
};
template <class A>
struct JoinMin {
  using Value = A;
  using Limits = std::numeric_limits<A>;
  static constexpr A kMost = std::is_integral_v<A> ? Limits::max() : Limits::infinity();
  static TRIREME_DEVICE A start() { return kMost; }
  static TRIREME_DEVICE A of(A term) { return term; }
  static TRIREME_DEVICE A join(A a, A b) { return b < a || b != b ? b : a; }
};

}  // namespace trireme::cuda
