// The functions of one element of the operators of one operand, for host and device: a functor for each row
// of elementwise_rows.inc.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#ifdef __CUDACC__
#define TRIREME_HD __host__ __device__
#else
#define TRIREME_HD
#endif

namespace trireme::tensor::math {

template <class C>
inline constexpr bool kSigned = std::is_signed_v<C> || std::is_floating_point_v<C>;

/// The limits as constants: device code may not call what gives them.
template <class C>
inline constexpr C kLargest = std::numeric_limits<C>::max();
template <class C>
inline constexpr C kLowest = std::numeric_limits<C>::lowest();

/// Integers wrap around instead of overflowing.
template <class C>
TRIREME_HD C wrap_neg(C x) {
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(0 - static_cast<uint64_t>(x));
  else
    return -x;
}

// The expressions of the tables call these by their plain names, for every type that they compute with.
using std::acos, std::acosh, std::asin, std::asinh, std::atan, std::atanh, std::ceil, std::cos, std::cosh,
    std::erf, std::exp, std::expm1, std::fabs, std::floor, std::fmax, std::fmin, std::log, std::log1p,
    std::nearbyint, std::sin, std::sinh, std::sqrt, std::tan, std::tanh;

/// 1 / (1 + e^-x).
template <class C>
TRIREME_HD C logistic(C x) {
  return C(1) / (C(1) + exp(-x));
}

/// log(1 + e^x) without overflow: the exponent is never positive.
template <class C>
TRIREME_HD C softplus(C x) {
  return (x > 0 ? x : C(0)) + log1p(exp(x > 0 ? -x : x));
}

// The functors of elementwise_rows.inc. `p`: two numbers, the attributes in the order of the row if it has
// any.
#define FUNCTION(Name, cost, ...) SCALAR_FUNCTION(Name, __VA_ARGS__)
#define SCALAR_FUNCTION(Name, ...)                                             \
  struct Name {                                                                \
    double p0, p1;                                                             \
    TRIREME_HD explicit Name(const double* p) : p0(p[0]), p1(p[1]) {}          \
    template <class C>                                                         \
    TRIREME_HD C operator()(C x) const {                                       \
      [[maybe_unused]] const C a = static_cast<C>(p0), b = static_cast<C>(p1); \
      return static_cast<C>(__VA_ARGS__);                                      \
    }                                                                          \
  };
#define IF(condition, p, q) ((condition) ? (p) : (q))
#include "tensor/elementwise_rows.inc"
#undef IF

/// x + bias where x < -lambda, x - bias where x > lambda, else 0; computed in double for integers.
struct Shrink {
  double bias, lambda;
  TRIREME_HD explicit Shrink(const double* p) : bias(p[0]), lambda(p[1]) {}
  template <class C>
  TRIREME_HD C operator()(C x) const {
    const double v = static_cast<double>(x);
    return v < -lambda ? static_cast<C>(v + bias) : v > lambda ? static_cast<C>(v - bias) : C(0);
  }
};

struct IsNan {
  TRIREME_HD explicit IsNan(const double*) {}
  template <class C>
  TRIREME_HD bool operator()(C x) const {
    return x != x;
  }
};

struct IsInf {
  bool negative, positive;
  TRIREME_HD explicit IsInf(const double* p) : negative(p[0] != 0), positive(p[1] != 0) {}
  template <class C>
  TRIREME_HD bool operator()(C x) const {
    return (positive && x > kLargest<C>) || (negative && x < kLowest<C>);
  }
};

/// min(max(x, p[0]), p[1]); NaN passes through.
struct Clip {
  double low, high;
  TRIREME_HD explicit Clip(const double* p) : low(p[0]), high(p[1]) {}
  template <class C>
  TRIREME_HD C operator()(C x) const {
    const C l = static_cast<C>(low), h = static_cast<C>(high);
    const C raised = x < l ? l : x;
    return raised > h ? h : raised;
  }
};

/// x as a To: floats truncate and clamp to the range of integers, NaN becomes 0; integers wrap.
template <class To, class C>
TRIREME_HD To converted(C x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != C(0);
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<C>) {
    if (x != x) return 0;
    // The limits as floats may be one past the integer's own: compare before converting.
    if (x >= static_cast<C>(kLargest<To>)) return kLargest<To>;
    if (x <= static_cast<C>(kLowest<To>)) return kLowest<To>;
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace trireme::tensor::math
