// Elementwise functions of two float tensors, with the broadcasts that rows and columns need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// One function per row. Comparisons and logic give 1.0f or 0.0f. Flop counts are per element.
enum class BinaryOp : uint8_t {
  add,           // 1
  sub,           // 1
  mul,           // 1
  div,           // 1
  min,           // NaN if either is, 3
  max,           // NaN if either is, 3
  pow,           // library call per element
  prelu,         // a < 0 ? a b : a, 2
  mod,           // a - floor(a / b) b, sign of b: library call per element
  fmod,          // a - trunc(a / b) b, sign of a: library call per element
  squared_diff,  // (a - b)^2, 2
  equal,         // 1, as all below
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  logical_and,  // operands count as true where not 0
  logical_or,
  logical_xor,
  count_  // number of functions, not a function
};

/// How the two operands of `binary` reach the [rows, cols] result.
enum class BinaryForm : uint8_t {
  vector_vector,  // a [rows, cols], b [rows, cols]
  vector_scalar,  // a [rows, cols], b [1]
  scalar_vector,  // a [1], b [rows, cols]
  vector_row,     // a [rows, cols], b [cols], repeated for each row
  row_vector,     // a [cols], b [rows, cols]
  vector_column,  // a [rows, cols], b [rows], one value per row
  column_vector,  // a [rows], b [rows, cols]
};

struct BinaryArgs {
  const float* a;
  const float* b;
  float* y;  // [rows, cols]; may be the operand that has this shape
  int64_t rows = 1;
  int64_t cols = 0;
};

/// y = op(a, b) in the given form. 12 bytes per element (vector_vector) or 8 (the others).
void binary(BinaryOp op, BinaryForm form, const BinaryArgs& args, base::ThreadPool& pool);

/// A tile of n elements; an operand marked scalar supplies its first element everywhere.
using BinaryTile = void (*)(const float* a, const float* b, float* y, size_t n);
struct BinaryTiles {
  BinaryTile vector_vector;
  BinaryTile vector_scalar;
  BinaryTile scalar_vector;
};

/// Looks up the tile kernels of `op` at the SIMD level in force.
const BinaryTiles& binary_tiles(BinaryOp op);

/// y[i] = c[i] != 0 ? a[i] : b[i]; an operand with stride 0 (else 1) supplies its first element everywhere.
struct SelectArgs {
  const float* c;
  const float* a;
  const float* b;
  bool c_scalar = false;
  bool a_scalar = false;
  bool b_scalar = false;
};
using SelectTile = void (*)(const SelectArgs& args, float* y, size_t n);
SelectTile select_tile();

/// y[i] = a[i] * b[i] + c[i] rounded once where the level has FMA, on one tile; same operand rules as
/// SelectArgs.
SelectTile muladd_tile();

}  // namespace trireme::cpu
