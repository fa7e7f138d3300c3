// Arithmetic of the optimizers: each rule is one pass over a run of a parameter, its gradient and its states.
#pragma once

#include <cstdint>

namespace trireme::cpu {

// Every rule below is the written formula with one rounding per operation (no fused multiply-add), so that
// its bits are those of a scalar loop on every instruction set, and a run may be cut anywhere.
// T is float or double; the constants are computed in double and rounded to T once.

/// One run of a parameter. Outputs may be the matching inputs (in place); nothing else overlaps.
template <class T>
struct UpdateRun {
  const T* param = nullptr;
  const T* grad = nullptr;
  const T* state[2] = {};
  T* param_out = nullptr;
  T* state_out[2] = {};
  int64_t n = 0;
};

/// g = grad * grad_scale + l2 * p; v = momentum * v + keep * g (v = g on the first step);
/// u = nesterov ? g + momentum * v : v; p = p - lr * u. With momentum 0 there is no state and u = g.
struct SgdRule {
  double grad_scale = 1, l2 = 0, momentum = 0, keep = 1, lr = 0;
  bool first = false, nesterov = false;
};
template <class T>
void sgd_run(const SgdRule& rule, const UpdateRun<T>& run);

/// g = grad * grad_scale + l2 * p; m = beta1 * m + (1 - beta1) * g; v = beta2 * v + ((1 - beta2) * g) * g;
/// p = p * decay - rate * (m / (sqrt(v) * root + eps)).
/// rate = lr / (1 - beta1^t), root = 1 / sqrt(1 - beta2^t), decay = 1 - lr * weight_decay (AdamW) or 1.
/// f32: 28 bytes, 15 flop per element.
struct AdamRule {
  double grad_scale = 1, l2 = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, rate = 0, root = 1, decay = 1;
};
template <class T>
void adam_run(const AdamRule& rule, const UpdateRun<T>& run);

/// Sums of squares of p and u over one run, in f64.
struct RunNorms {
  double param = 0, update = 0;
};

/// u = (m * inverse) / (sqrt(v) * root + eps) + weight_decay * p with m, v as in Adam;
/// inverse = 1 / (1 - beta1^t).
struct LambRule {
  double grad_scale = 1, beta1 = 0.9, take1 = 0.1, beta2 = 0.999, eps = 1e-6, inverse = 1, root = 1,
         weight_decay = 0;
};
/// First pass: writes m and v, leaves p. f32: 24 bytes per element.
template <class T>
RunNorms lamb_moments(const LambRule& rule, const UpdateRun<T>& run);
/// Second pass, reading the moments from state_out: p = p - rate * u with rate = lr * ratio. 16 bytes.
template <class T>
void lamb_apply(const LambRule& rule, double rate, const UpdateRun<T>& run);

/// v = momentum * v + rate * (grad * grad_scale + weight_decay * p); p = p - v, rate = lr * lambda.
struct LarsRule {
  double grad_scale = 1, momentum = 0.9, weight_decay = 0, rate = 0;
};
template <class T>
void lars_run(const LarsRule& rule, const UpdateRun<T>& run);

/// out = keep * state + (1 - keep) * value. 12 bytes per f32 element.
template <class T>
void ema_run(double keep, const UpdateRun<T>& run);  // param: state, grad: value
/// out = state + value.
template <class T>
void accumulate_run(const UpdateRun<T>& run);  // param: state, grad: value

/// Sum of x^2 in f64: 16 running sums (element i in sum i mod 16), folded by halves; the same bits at every
/// SIMD level. Not finite exactly if some x is not (f32).
template <class T>
double sum_squares(const T* x, int64_t n);
/// sums[i] += x[i]^2 in f64.
template <class T>
void add_squares(const T* x, double* sums, int64_t n);

/// Adafactor's direction: u[i] = grad[i] * grad_scale / sqrt(max(row * variance[i], floor)).
struct FactoredRow {
  double grad_scale = 1, row = 1, floor = 0;
};
template <class T>
void factored_direction(const FactoredRow& rule, const T* grad, const T* variance, T* u, int64_t n);
/// out = state + take * (grad^2 * grad_scale^2 - state): the running mean of squares of a vector parameter.
template <class T>
void mean_square_run(double take, double grad_scale, const UpdateRun<T>& run);  // param: state

/// Muon's momentum: b = b + take * (g - b); u = nesterov ? g + (1 - take) * (b - g) : b; g = grad * scale.
struct MuonMomentum {
  double grad_scale = 1, take = 0.05;
  bool nesterov = true;
};
/// Reads grad and state[0], writes state_out[0] and, in param_out, u.
template <class T>
void muon_momentum(const MuonMomentum& rule, const UpdateRun<T>& run);

/// y = x * scale.
template <class T>
void scale_run(const T* x, T scale, T* y, int64_t n);
/// y = a * x + b * y0 with both products rounded; y may be y0.
template <class T>
struct Blend {
  T a, b;
};
template <class T>
void blend_run(const Blend<T>& blend, const T* x, const T* y0, T* y, int64_t n);

}  // namespace trireme::cpu
