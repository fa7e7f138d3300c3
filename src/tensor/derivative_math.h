// The derivatives of the elementwise ops of one operand, for host and device: dx = f(dy, v), where v is the
// operand x or the result y of the op, whichever is cheaper to start from.
#pragma once

#include "tensor/element_math.h"

namespace trireme::tensor::math {

#define TRIREME_DERIVATIVE(Name, expression)   \
  struct Name {                                \
    TRIREME_HD explicit Name(const double*) {} \
    template <class C>                         \
    TRIREME_HD C operator()(C d, C v) const {  \
      return static_cast<C>(expression);       \
    }                                          \
  };
// `a` and `b` are the row's attributes in table order.
#define TRIREME_DERIVATIVE_A(Name, expression)                                 \
  struct Name {                                                                \
    double p0, p1;                                                             \
    TRIREME_HD explicit Name(const double* p) : p0(p[0]), p1(p[1]) {}          \
    template <class C>                                                         \
    TRIREME_HD C operator()(C d, C v) const {                                  \
      [[maybe_unused]] const C a = static_cast<C>(p0), b = static_cast<C>(p1); \
      return static_cast<C>(expression);                                       \
    }                                                                          \
  };

/// 1 / (1 + e^-x).
template <class C>
TRIREME_HD C logistic(C x) {
  return C(1) / (C(1) + std::exp(-x));
}

// From x.
TRIREME_DERIVATIVE(AbsGrad, v > C(0) ? d : v < C(0) ? -d : C(0))
TRIREME_DERIVATIVE(LogGrad, d / v)
TRIREME_DERIVATIVE(SinGrad, d* std::cos(v))
TRIREME_DERIVATIVE(CosGrad, -d* std::sin(v))
TRIREME_DERIVATIVE(AsinGrad, d / std::sqrt(C(1) - v * v))
TRIREME_DERIVATIVE(AcosGrad, -d / std::sqrt(C(1) - v * v))
TRIREME_DERIVATIVE(AtanGrad, d / (C(1) + v * v))
TRIREME_DERIVATIVE(SinhGrad, d* std::cosh(v))
TRIREME_DERIVATIVE(CoshGrad, d* std::sinh(v))
TRIREME_DERIVATIVE(AsinhGrad, d / std::sqrt(v * v + C(1)))
TRIREME_DERIVATIVE(AcoshGrad, d / std::sqrt(v * v - C(1)))
TRIREME_DERIVATIVE(AtanhGrad, d / (C(1) - v * v))
TRIREME_DERIVATIVE(ErfGrad, d* C(1.12837916709551257390) * std::exp(-v * v))
TRIREME_DERIVATIVE(HardSwishGrad, v < C(-3) ? C(0) : v <= C(3) ? d * (v / C(3) + C(0.5)) : d)
TRIREME_DERIVATIVE(SoftplusGrad, d* logistic(v))
TRIREME_DERIVATIVE(SoftsignGrad, d / ((C(1) + std::fabs(v)) * (C(1) + std::fabs(v))))
TRIREME_DERIVATIVE_A(LeakyReluGrad, v < C(0) ? a * d : d)
TRIREME_DERIVATIVE_A(EluGrad, v > C(0) ? d : d * a * std::exp(v))
TRIREME_DERIVATIVE_A(SeluGrad, v > C(0) ? b * d : d * b * a * std::exp(v))
TRIREME_DERIVATIVE_A(CeluGrad, v > C(0) ? d : d * std::exp(v / a))
TRIREME_DERIVATIVE_A(ThresholdedReluGrad, v > a ? d : C(0))
TRIREME_DERIVATIVE_A(HardSigmoidGrad, a* v + b > C(0) && a * v + b < C(1) ? a * d : C(0))
TRIREME_DERIVATIVE_A(SwishGrad, d* logistic(a* v) * (C(1) + a * v * (C(1) - logistic(a * v))))
TRIREME_DERIVATIVE_A(ShrinkGrad, v<-b || v> b ? d : C(0))
TRIREME_DERIVATIVE_A(ClipGrad, v >= a && v <= b ? d : C(0))
// Phi(x) + x phi(x), the distribution and the density of the standard normal.
TRIREME_DERIVATIVE(GeluErfGrad, d*(C(0.5) * (C(1) + std::erf(v * C(0.70710678118654752440))) +
                                   v * C(0.39894228040143267794) * std::exp(C(-0.5) * v * v)))

// From y.
TRIREME_DERIVATIVE(ExpGrad, d* v)
TRIREME_DERIVATIVE(SqrtGrad, d*(C(0.5) / v))
TRIREME_DERIVATIVE(ReciprocalGrad, -d* v* v)
TRIREME_DERIVATIVE(TanGrad, d*(C(1) + v * v))
TRIREME_DERIVATIVE(TanhGrad, d*(C(1) - v * v))
TRIREME_DERIVATIVE(SigmoidGrad, d* v*(C(1) - v))
TRIREME_DERIVATIVE(ReluGrad, v <= C(0) ? C(0) : d)
#undef TRIREME_DERIVATIVE
#undef TRIREME_DERIVATIVE_A

/// With t = tanh(softplus(x)): t + x sigmoid(x) (1 - t^2).
struct MishGrad {
  TRIREME_HD explicit MishGrad(const double*) {}
  template <class C>
  TRIREME_HD C operator()(C d, C x) const {
    const C t = std::tanh((x > 0 ? x : C(0)) + std::log1p(std::exp(x > 0 ? -x : x)));
    return d * (t + x * logistic(x) * (C(1) - t * t));
  }
};

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
