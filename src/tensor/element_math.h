// The scalar functions of one operand of the elementwise ops, for host and device: one functor per row of the
// op tables.
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

// One operand. `p` are the row's attributes in table order. Functors without attributes ignore it.
#define TRIREME_UNARY(Name, expression)        \
  struct Name {                                \
    TRIREME_HD explicit Name(const double*) {} \
    template <class C>                         \
    TRIREME_HD C operator()(C x) const {       \
      return static_cast<C>(expression);       \
    }                                          \
  };
#define TRIREME_UNARY_A(Name, expression)                                      \
  struct Name {                                                                \
    double p0, p1;                                                             \
    TRIREME_HD explicit Name(const double* p) : p0(p[0]), p1(p[1]) {}          \
    template <class C>                                                         \
    TRIREME_HD C operator()(C x) const {                                       \
      [[maybe_unused]] const C a = static_cast<C>(p0), b = static_cast<C>(p1); \
      return static_cast<C>(expression);                                       \
    }                                                                          \
  };

TRIREME_UNARY(Abs, !kSigned<C> || x > 0 ? x : x == 0 ? C(0) : x != x ? x : wrap_neg(x))
TRIREME_UNARY(Neg, wrap_neg(x))
TRIREME_UNARY(Sign, x > 0 ? C(1) : x < C(0) ? wrap_neg(C(1)) : x)
TRIREME_UNARY(Floor, std::floor(x))
TRIREME_UNARY(Ceil, std::ceil(x))
TRIREME_UNARY(Round, std::nearbyint(x))
TRIREME_UNARY(Exp, std::exp(x))
TRIREME_UNARY(Log, std::log(x))
TRIREME_UNARY(Sqrt, std::sqrt(x))
TRIREME_UNARY(Reciprocal, C(1) / x)
TRIREME_UNARY(Sin, std::sin(x))
TRIREME_UNARY(Cos, std::cos(x))
TRIREME_UNARY(Tan, std::tan(x))
TRIREME_UNARY(Asin, std::asin(x))
TRIREME_UNARY(Acos, std::acos(x))
TRIREME_UNARY(Atan, std::atan(x))
TRIREME_UNARY(Sinh, std::sinh(x))
TRIREME_UNARY(Cosh, std::cosh(x))
TRIREME_UNARY(Tanh, std::tanh(x))
TRIREME_UNARY(Asinh, std::asinh(x))
TRIREME_UNARY(Acosh, std::acosh(x))
TRIREME_UNARY(Atanh, std::atanh(x))
TRIREME_UNARY(Erf, std::erf(x))
TRIREME_UNARY(Sigmoid, C(1) / (C(1) + std::exp(-x)))
TRIREME_UNARY(Relu, x < C(0) ? C(0) : x)
TRIREME_UNARY(HardSwish, x* std::fmax(C(0), std::fmin(C(1), x / C(6) + C(0.5))))
// log(1 + e^x) without overflow: the exponent is never positive.
TRIREME_UNARY(Softplus, (x > 0 ? x : C(0)) + std::log1p(std::exp(x > 0 ? -x : x)))
TRIREME_UNARY(Softsign, x / (C(1) + std::fabs(x)))
TRIREME_UNARY(Mish, x* std::tanh((x > 0 ? x : C(0)) + std::log1p(std::exp(x > 0 ? -x : x))))
TRIREME_UNARY(GeluErf, C(0.5) * x * (C(1) + std::erf(x * C(0.70710678118654752440))))
TRIREME_UNARY(GeluTanh,
              C(0.5) * x * (C(1) + std::tanh(C(0.79788456080286535588) * (x + C(0.044715) * x * x * x))))
TRIREME_UNARY(Not, !x)
TRIREME_UNARY(BitwiseNot, ~x)
TRIREME_UNARY_A(LeakyRelu, x < C(0) ? a * x : x)
TRIREME_UNARY_A(Elu, x > C(0) ? x : a * std::expm1(x))
TRIREME_UNARY_A(Selu, x > C(0) ? b * x : b * a * std::expm1(x))
TRIREME_UNARY_A(Celu, x > C(0) ? x : a * std::expm1(x / a))
TRIREME_UNARY_A(ThresholdedRelu, x > a ? x : C(0))
TRIREME_UNARY_A(HardSigmoid, std::fmax(C(0), std::fmin(C(1), a* x + b)))
TRIREME_UNARY_A(Swish, x / (C(1) + std::exp(-a * x)))
#undef TRIREME_UNARY
#undef TRIREME_UNARY_A

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
struct Clamp {
  double low, high;
  TRIREME_HD explicit Clamp(const double* p) : low(p[0]), high(p[1]) {}
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
