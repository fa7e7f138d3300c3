// The functions of one element of the operators of two operands, for host and device: a functor for each row
// of elementwise_rows.inc.
#pragma once

#include "tensor/element_math.h"

namespace trireme::tensor::math {

template <class C>
using Wide = std::conditional_t<std::is_integral_v<C>, uint64_t, C>;

// The functors of elementwise_rows.inc. Division by zero gives 0 for integers, because trapping is no answer.
#define BINARY_FUNCTION(Name, ...) SCALAR_BINARY(Name, __VA_ARGS__)
#define SCALAR_BINARY(Name, ...)                 \
  struct Name {                                  \
    TRIREME_HD explicit Name(const double*) {}   \
    template <class C>                           \
    TRIREME_HD auto operator()(C x, C y) const { \
      return __VA_ARGS__;                        \
    }                                            \
  };
#define IF(condition, p, q) ((condition) ? (p) : (q))
#include "tensor/elementwise_rows.inc"
#undef IF

struct Div {
  TRIREME_HD explicit Div(const double*) {}
  template <class C>
  TRIREME_HD C operator()(C x, C y) const {
    if constexpr (std::is_integral_v<C>) {
      if (y == 0) return 0;
      if constexpr (std::is_signed_v<C>) {
        if (y == C(-1)) return wrap_neg(x);  // the one quotient that overflows
      }
      return static_cast<C>(x / y);
    } else {
      return x / y;
    }
  }
};

/// p[0] = 0: remainder with the sign of y; 1: with the sign of x (C's fmod).
struct Mod {
  bool truncates;
  TRIREME_HD explicit Mod(const double* p) : truncates(p[0] != 0) {}
  template <class C>
  TRIREME_HD C operator()(C x, C y) const {
    C r;
    if constexpr (std::is_integral_v<C>) {
      if (y == 0) return 0;
      if constexpr (std::is_signed_v<C>) {
        if (y == C(-1)) return 0;
      }
      r = static_cast<C>(x % y);
    } else {
      r = std::fmod(x, y);
    }
    if (!truncates && r != C(0) && (r < C(0)) != (y < C(0))) r = static_cast<C>(r + y);
    return r;
  }
};

/// p[0] = 1: to the left, else to the right; shifting out every bit gives 0.
struct BitShift {
  bool left;
  TRIREME_HD explicit BitShift(const double* p) : left(p[0] != 0) {}
  template <class C>
  TRIREME_HD C operator()(C x, C y) const {
    // A distance outside the width leaves what sign extension alone gives.
    if (static_cast<uint64_t>(y) >= 8 * sizeof(C)) return !left && x < C(0) ? static_cast<C>(-1) : C(0);
    if (!left && kSigned<C>) return static_cast<C>(static_cast<int64_t>(x) >> y);
    return static_cast<C>(left ? static_cast<uint64_t>(x) << y : static_cast<uint64_t>(x) >> y);
  }
};

/// x^y; for integers by squaring, with 1/x^|y| rounded to zero for negative y.
struct Pow {
  TRIREME_HD explicit Pow(const double*) {}
  template <class C>
  TRIREME_HD C operator()(C x, C y) const {
    if constexpr (std::is_integral_v<C>) {
      if (kSigned<C> && y < C(0)) return x == C(1) ? C(1) : x == wrap_neg(C(1)) ? (y & 1 ? x : C(1)) : C(0);
      uint64_t power = 1, square = static_cast<uint64_t>(x);
      for (uint64_t left = static_cast<uint64_t>(y); left != 0; left >>= 1, square *= square) {
        if (left & 1) power *= square;
      }
      return static_cast<C>(power);
    } else {
      return y == C(2) ? x * x : y == C(0.5) && x >= C(0) ? std::sqrt(x) : std::pow(x, y);
    }
  }
};

}  // namespace trireme::tensor::math
