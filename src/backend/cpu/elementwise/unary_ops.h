// Elementwise functions of one float tensor: y = f(x), over contiguous memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// The rows and steps of tensor/elementwise_rows.inc; some names are words of C++.
enum class UnaryOp : uint8_t {
#define UNARY_ROW(name, ...) name##_,
#define UNARY_ROW_ALONE(name, ...) name##_,
#define PREDICATE_ROW(name, ...) name##_,
#define UNARY_STEP(name, ...) name##_,
#include "tensor/elementwise_rows.inc"
  pow_scalar_,  // x^a; a of -1, -1/2, 0, 1/2, 1, 2, 3 by products
  count_        // number of functions, not a function
};

/// The function that computes the operator or step `name`, if it has vector code.
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

/// y[i] = f(x[i]) for i in [0, n); y may be x. 8 bytes per element. `f` has vector code. NaN stays NaN except
/// in thresholded_relu; relative error at most 3 ulp (sin and cos: 4 ulp of the larger of result and 2^-24
/// |x|).
void unary(const UnaryFunction& f, const float* x, float* y, int64_t n, base::ThreadPool& pool);

/// The same on the calling thread: the form the fused interpreter and other kernels use on tiles.
using UnaryTile = void (*)(const float* x, float* y, size_t n, UnaryParams params);

/// Looks up the tile kernel of `op` at the SIMD level in force, null where it has no vector code; a few
/// nanoseconds.
UnaryTile unary_tile(UnaryOp op);

/// True where the function costs a polynomial or a library call, so that splitting pays off at smaller sizes.
bool is_costly(UnaryOp op);

}  // namespace trireme::cpu
