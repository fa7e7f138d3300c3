// The derivatives of the elementwise ops of one operand, for host and device: dx = f(dy, v), where v is the
// operand x or the result y of the op, whichever is cheaper to start from.
#pragma once

#include "tensor/element_math.h"

namespace trireme::tensor::math {

/// The slope of x tanh(u) in x, where t = tanh(u) and u grows with x by `slope`.
template <class C>
TRIREME_HD C slope_with_tanh(C x, C t, C slope) {
  return t + x * slope * (C(1) - t * t);
}

// The functors `<Functor>Grad` of elementwise_rows.inc; `p` as there.
#define DERIVATIVE(Name, cost, ...) SCALAR_DERIVATIVE(Name, __VA_ARGS__)
#define SCALAR_DERIVATIVE(Name, ...)                                           \
  struct Name##Grad {                                                          \
    double p0, p1;                                                             \
    TRIREME_HD explicit Name##Grad(const double* p) : p0(p[0]), p1(p[1]) {}    \
    template <class C>                                                         \
    TRIREME_HD C operator()(C d, C v) const {                                  \
      [[maybe_unused]] const C a = static_cast<C>(p0), b = static_cast<C>(p1); \
      return static_cast<C>(__VA_ARGS__);                                      \
    }                                                                          \
  };
#define IF(condition, p, q) ((condition) ? (p) : (q))
#include "tensor/elementwise_rows.inc"
#undef IF

/// With t = tanh(u), u = sqrt(2/pi) (x + 0.044715 x^3): (1 + t) / 2 + x (1 - t^2) u' / 2.
struct GeluTanhGrad {
  TRIREME_HD explicit GeluTanhGrad(const double*) {}
  template <class C>
  TRIREME_HD C operator()(C d, C x) const {
    const C root = C(0.79788456080286535588), cubic = C(0.044715);
    const C t = std::tanh(root * (x + cubic * x * x * x));
    return d * (C(0.5) * (C(1) + t) + C(0.5) * x * (C(1) - t * t) * root * (C(1) + C(3) * cubic * x * x));
  }
};

}  // namespace trireme::tensor::math
