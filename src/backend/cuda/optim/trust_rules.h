// Rules of updates whose step is scaled by norms of a whole parameter: LAMB, LARS and Adafactor's form for
// vectors. They round once an operation, as backend/cpu/optim/update_rules.h writes them.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/exact.h"
#include "backend/cuda/optim/update_table.h"

namespace trireme::cuda {

/// What a step is made of, computed once a launch from operands in device memory.
struct TrustNumbers {
  double lr, grad_scale, step;
  float scale, inverse, root, take, keep;
  int32_t is_skipped;
};

/// inverse = 1 / (1 - beta1^t), root = 1 / sqrt(1 - beta2^t), take = t^beta2_decay, keep = 1 - lr
/// weight_decay.
struct PrepareTrust {
  FloatScalar lr, grad_scale;
  const int64_t* step;
  const uint8_t* skip;  // or null
  double lr_scale, beta1, beta2, beta2_decay, weight_decay;
  TrustNumbers* out;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    if (lane.thread() != 0) return;
    TrustNumbers k{};
    k.lr = lr.value(0) * lr_scale;
    k.grad_scale = grad_scale.value(1);
    k.step = static_cast<double>(*step);
    k.scale = static_cast<float>(k.grad_scale);
    k.inverse = static_cast<float>(1 / (1 - pow(beta1, k.step)));
    k.root = static_cast<float>(1 / sqrt(1 - pow(beta2, k.step)));
    k.take = static_cast<float>(pow(k.step, beta2_decay));
    k.keep = static_cast<float>(1 - k.lr * weight_decay);
    k.is_skipped = skip != nullptr && *skip != 0 ? 1 : 0;
    *out = k;
  }
};

// A rule's begin() gives the new states and the term whose norm is compared with the parameter's; rate()
// makes the step of the parameter from both sums of squares; end() takes it. kEarly: begin's states are kept,
// and end() reads them.
struct LambTrust {
  static constexpr int kStates = 2;
  static constexpr bool kEarly = true;
  float beta1, take1, beta2, take2, epsilon, weight_decay;
  bool adapt;

  TRIREME_DEVICE float begin(const TrustNumbers& k, float p, float g, float* s) const {
    g = exact::times(g, k.scale);
    s[0] = exact::plus(exact::times(beta1, s[0]), exact::times(take1, g));
    s[1] = exact::plus(exact::times(beta2, s[1]), exact::times(exact::times(take2, g), g));
    return direction(k, p, s);
  }
  TRIREME_DEVICE double rate(const TrustNumbers& k, double param, double update, int64_t) const {
    if (!adapt || !(param != 0) || !(update != 0)) return k.lr;
    return k.lr * (sqrt(param) / sqrt(update));
  }
  TRIREME_DEVICE float end(const TrustNumbers& k, float rate, float p, float, float* s) const {
    return exact::plus(p, -exact::times(rate, direction(k, p, s)));
  }

 private:
  TRIREME_DEVICE float direction(const TrustNumbers& k, float p, const float* s) const {
    const float below = exact::plus(exact::times(exact::root(s[1]), k.root), epsilon);
    return exact::plus(exact::divided(exact::times(s[0], k.inverse), below), exact::times(weight_decay, p));
  }
};

struct LarsTrust {
  static constexpr int kStates = 1;
  static constexpr bool kEarly = false;
  float momentum, weight_decay;
  double eta, wide_decay, epsilon;
  bool adapt;

  TRIREME_DEVICE float begin(const TrustNumbers&, float, float g, float*) const { return g; }
  TRIREME_DEVICE double rate(const TrustNumbers& k, double param, double grad, int64_t) const {
    if (!adapt) return k.lr;
    const double p = sqrt(param), g = sqrt(grad) * fabs(k.grad_scale);
    if (!(p != 0) || !(g != 0)) return k.lr;
    return k.lr * (eta * p / (g + wide_decay * p + epsilon));
  }
  TRIREME_DEVICE float end(const TrustNumbers& k, float rate, float p, float g, float* s) const {
    g = exact::plus(exact::times(g, k.scale), exact::times(weight_decay, p));
    s[0] = exact::plus(exact::times(momentum, s[0]), exact::times(rate, g));
    return exact::plus(p, -s[0]);
  }
};

/// The step of Adafactor from sums of squares of parameter and direction over n elements.
struct FactoredStep {
  double eps2, d;
  TRIREME_DEVICE double operator()(const TrustNumbers& k, double param, double update, int64_t n) const {
    const double slow = 1 / sqrt(k.step), rho = k.lr < slow ? k.lr : slow;
    const double p = sqrt(param / static_cast<double>(n)), u = sqrt(update / static_cast<double>(n)) / d;
    return (p > eps2 ? p : eps2) * rho / (u > 1.0 ? u : 1.0);
  }
};

/// u = g / sqrt(max(factor variance, floor)); a NaN variance stays.
TRIREME_DEVICE float factored_direction(float g, float scale, float variance, float floor) {
  return exact::divided(exact::times(g, scale), exact::root(floor > variance ? floor : variance));
}

struct FactoredVector {
  static constexpr int kStates = 1;
  static constexpr bool kEarly = true;
  float floor;
  FactoredStep step;

  TRIREME_DEVICE float begin(const TrustNumbers& k, float, float g, float* s) const {
    const float scaled = exact::times(g, k.scale);
    s[0] = exact::plus(s[0], exact::times(k.take, exact::plus(exact::times(scaled, scaled), -s[0])));
    return factored_direction(g, k.scale, s[0], floor);
  }
  TRIREME_DEVICE double rate(const TrustNumbers& k, double param, double update, int64_t n) const {
    return step(k, param, update, n);
  }
  TRIREME_DEVICE float end(const TrustNumbers& k, float rate, float p, float g, float* s) const {
    const float u = factored_direction(g, k.scale, s[0], floor);
    return exact::plus(exact::times(-rate, u), exact::times(k.keep, p));
  }
};

}  // namespace trireme::cuda
