// Elementwise functions of one float tensor: y = f(x), over contiguous memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// The unary rows of vector_functions.inc.
enum class UnaryOp : uint8_t {
#define UNARY_FUNCTION(name, op, cost) name,
#define GRADIENT_FUNCTION(name, op, cost)
#include "backend/cpu/elementwise/vector_functions.inc"
#undef UNARY_FUNCTION
#undef GRADIENT_FUNCTION
  count_  // number of functions, not a function
};

/// The function that computes the operator `name`.
std::optional<UnaryOp> unary_op_of(std::string_view name);

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
