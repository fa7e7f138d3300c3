// Elementwise functions of one float tensor: y = f(x), over contiguous memory.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// One function per row; a and b are UnaryParams. Flop counts are the vector arithmetic a SIMD level
/// executes.
enum class UnaryOp : uint8_t {
  identity,          // x, 0 flop
  relu,              // max(x, 0), 1
  leaky_relu,        // x < 0 ? a x : x, 2
  thresholded_relu,  // x > a ? x : 0, 1
  elu,               // x > 0 ? x : a (exp(x) - 1), 17
  selu,              // b (x > 0 ? x : a (exp(x) - 1)), 18
  celu,              // max(x, 0) + min(0, a (exp(x / a) - 1)), 20
  sigmoid,           // 1 / (1 + exp(-x)), 18
  hard_sigmoid,      // clip(a x + b, 0, 1), 4
  hard_swish,        // x clip(x / 6 + 1/2, 0, 1), 5
  silu,              // x / (1 + exp(-a x)), 20
  mish,              // x tanh(log(1 + exp(x))), 22
  softplus,          // log(1 + exp(x)), 40
  softsign,          // x / (1 + |x|), 3
  tanh,              // 20
  exp,               // 16
  expm1,             // 15
  log,               // x > 0, 22
  log1p,             // x >= -1, 30
  sqrt,              // 1
  rsqrt,             // 1 / sqrt(x), 2
  reciprocal,        // 1
  square,            // 1
  erf,               // 26
  gelu_erf,          // x (1 + erf(x / sqrt 2)) / 2, 29
  gelu_tanh,         // x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, 26
  sin,               // 20
  cos,               // 20
  tan,               // library call per element
  asin,              // library call per element, as the seven below
  acos,
  atan,
  sinh,
  cosh,
  asinh,
  acosh,
  atanh,
  abs,          // 1
  neg,          // 1
  floor,        // 1
  ceil,         // 1
  round,        // half to even, 1
  trunc,        // 1
  sign,         // -1, 0 or 1; NaN stays, 2
  clip,         // min(max(x, a), b), 2
  shrink,       // x < -b ? x + a : x > b ? x - a : 0, 4
  pow_scalar,   // x^a; a in {-1, -1/2, 0, 1/2, 1, 2, 3} by multiplication, else a library call
  affine,       // a x + b, 2
  logical_not,  // x == 0 ? 1 : 0, 1
  is_nan,       // 1
  is_inf,       // 1
  count_        // number of functions, not a function
};

struct UnaryParams {
  float a = 0.0f;
  float b = 0.0f;
};

/// A function with its parameters bound.
struct UnaryFunction {
  UnaryOp op;
  UnaryParams params = {};
};

/// y[i] = f(x[i]) for i in [0, n); y may be x. 8 bytes per element. NaN stays NaN except in the three
/// predicates and thresholded_relu; relative error at most 3 ulp (sin and cos: 4 ulp of the larger of result
/// and 2^-24 |x|).
void unary(const UnaryFunction& f, const float* x, float* y, int64_t n, base::ThreadPool& pool);

/// The same on the calling thread: the form the fused interpreter and other kernels use on tiles.
using UnaryTile = void (*)(const float* x, float* y, size_t n, UnaryParams params);

/// Looks up the tile kernel of `op` at the SIMD level in force; a few nanoseconds.
UnaryTile unary_tile(UnaryOp op);

/// True where the function costs a polynomial or a library call, so that splitting pays off at smaller sizes.
bool is_costly(UnaryOp op);

}  // namespace trireme::cpu
