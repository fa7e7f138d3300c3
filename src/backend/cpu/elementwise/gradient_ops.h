// Derivatives of elementwise functions over contiguous f32: dx = dy f'(x) in one pass.
#pragma once

#include "backend/cpu/elementwise/unary_ops.h"

namespace trireme::cpu {

/// The derivatives of the rows and steps of tensor/elementwise_rows.inc, by the names of their functions.
enum class GradientOp : uint8_t {
#define UNARY_ROW(name, ...) name##_,
#define UNARY_STEP(name, ...) name##_,
#include "tensor/elementwise_rows.inc"
  count_  // number of derivatives, not one
};

/// The derivative that computes the operator or step `name` ("tanh_grad"), if it has vector code.
std::optional<GradientOp> gradient_op_of(std::string_view name);

/// dx[i] = f(dy[i], v[i]) for i in [0, n) on the calling thread; dx may be dy or v. 12 bytes per element.
using GradientTile = void (*)(const float* dy, const float* v, float* dx, size_t n, UnaryParams params);

/// Looks up the tile kernel of `op` at the SIMD level in force, null where it has no vector code.
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

/// The same over the team; `f` has vector code.
void gradient(const GradientFunction& f, const GradientArgs& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
