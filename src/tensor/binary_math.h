// The scalar functions of two operands of the elementwise ops, for host and device: one functor per table
// row.
#pragma once

#include "tensor/element_math.h"

namespace trireme::tensor::math {

// Two operands. Integer arithmetic wraps; division by zero gives 0 for integers, because trapping is no
// answer.
#define TRIREME_BINARY(Name, expression)         \
  struct Name {                                  \
    TRIREME_HD explicit Name(const double*) {}   \
    template <class C>                           \
    TRIREME_HD auto operator()(C x, C y) const { \
      return expression;                         \
    }                                            \
  };

template <class C>
using Wide = std::conditional_t<std::is_integral_v<C>, uint64_t, C>;

TRIREME_BINARY(Add, static_cast<C>(Wide<C>(x) + Wide<C>(y)))
TRIREME_BINARY(Sub, static_cast<C>(Wide<C>(x) - Wide<C>(y)))
TRIREME_BINARY(Mul, static_cast<C>(Wide<C>(x) * Wide<C>(y)))
TRIREME_BINARY(Equal, x == y)
TRIREME_BINARY(Less, x < y)
TRIREME_BINARY(LessOrEqual, x <= y)
TRIREME_BINARY(Greater, x > y)
TRIREME_BINARY(GreaterOrEqual, x >= y)
TRIREME_BINARY(And, x&& y)
TRIREME_BINARY(Or, x || y)
TRIREME_BINARY(Xor, x != y)
TRIREME_BINARY(BitwiseAnd, static_cast<C>(x& y))
TRIREME_BINARY(BitwiseOr, static_cast<C>(x | y))
TRIREME_BINARY(BitwiseXor, static_cast<C>(x ^ y))
TRIREME_BINARY(Min, x < y || x != x ? x : y)  // NaN if either is
TRIREME_BINARY(Max, x > y || x != x ? x : y)
TRIREME_BINARY(PRelu, static_cast<C>(x < C(0) ? x * y : x))
#undef TRIREME_BINARY

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
