// Derivatives of elementwise functions over contiguous f32: dx = dy f'(x) in one pass.
#pragma once

#include "backend/cpu/elementwise/unary_ops.h"

namespace trireme::cpu {

/// One derivative per row; d is dy, v the function's operand x or (rows marked y) its result; a and b are
/// UnaryParams as the function has them. Flop counts as in UnaryOp.
enum class GradientOp : uint8_t {
  relu,              // y: y > 0 ? d : 0, 1
  leaky_relu,        // v < 0 ? a d : d, 2
  thresholded_relu,  // v > a ? d : 0, 1
  elu,               // v > 0 ? d : d a exp(v), 18
  selu,              // d b (v > 0 ? 1 : a exp(v)), 19
  celu,              // v > 0 ? d : d exp(v / a), 19
  sigmoid,           // y: d y (1 - y), 3
  hard_sigmoid,      // 0 < a v + b < 1 ? a d : 0, 5
  hard_swish,        // d (v < -3 ? 0 : v <= 3 ? v / 3 + 1/2 : 1), 5
  silu,              // d s (1 + a v (1 - s)), s = sigmoid(a v), 23
  mish,              // d (t + v sigmoid(v) (1 - t^2)), t = tanh(softplus(v)), 30
  softplus,          // d sigmoid(v), 19
  softsign,          // d / (1 + |v|)^2, 4
  tanh,              // y: d (1 - y^2), 2
  exp,               // y: d y, 1
  log,               // d / v, 1
  sqrt,              // y: d / (2 y), 2
  reciprocal,        // y: -d y^2, 3
  erf,               // d 2/sqrt(pi) exp(-v^2), 19
  gelu_erf,          // d (Phi(v) + v phi(v)), 34
  gelu_tanh,         // 30
  sin,               // d cos(v), 21
  cos,               // -d sin(v), 21
  abs,               // d sign(v), 2
  clip,              // a <= v <= b ? d : 0, 2
  shrink,            // |v| > b ? d : 0, 2
  count_             // number of derivatives, not one
};

/// dx[i] = f(dy[i], v[i]) for i in [0, n) on the calling thread; dx may be dy or v. 12 bytes per element.
using GradientTile = void (*)(const float* dy, const float* v, float* dx, size_t n, UnaryParams params);

/// Looks up the tile kernel of `op` at the SIMD level in force.
GradientTile gradient_tile(GradientOp op);

/// True where the derivative costs a polynomial.
bool is_costly(GradientOp op);

struct GradientFunction {
  GradientOp op;
  UnaryParams params = {};
};

struct GradientArgs {
  const float* dy;
  const float* v;
  float* dx;  ///< may be dy or v
  int64_t n = 0;
};

/// The same over the team.
void gradient(const GradientFunction& f, const GradientArgs& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
