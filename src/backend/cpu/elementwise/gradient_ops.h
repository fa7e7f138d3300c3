// Derivatives of elementwise functions over contiguous f32: dx = dy f'(x) in one pass.
#pragma once

#include "backend/cpu/elementwise/unary_ops.h"

namespace trireme::cpu {

/// The gradient rows of vector_functions.inc.
enum class GradientOp : uint8_t {
#define UNARY_FUNCTION(name, op, cost)
#define GRADIENT_FUNCTION(name, op, cost) name,
#include "backend/cpu/elementwise/vector_functions.inc"
#undef UNARY_FUNCTION
#undef GRADIENT_FUNCTION
  count_  // number of derivatives, not one
};

/// The derivative that computes the operator `name`.
std::optional<GradientOp> gradient_op_of(std::string_view name);

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
