// Elementwise functions of two float tensors, with the broadcasts that rows and columns need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// The rows of tensor/elementwise_rows.inc that are functions of two operands; some names are words of C++.
enum class BinaryOp : uint8_t {
#define BINARY_ROW(name, ...) name##_,
#define COMPARE_ROW(name, ...) name##_,
#define FOLD_ROW(name, ...) name##_,
#include "tensor/elementwise_rows.inc"
  count_  // number of functions, not a function
};

/// The function that computes f32 for the operator or step `name`, if there is vector code for it.
std::optional<BinaryOp> binary_op_of(std::string_view name);

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

/// y = op(a, b) in the given form; `op` has vector code. 12 bytes per element (vector_vector) or 8 (the
/// others).
void binary(BinaryOp op, BinaryForm form, const BinaryArgs& args, base::ThreadPool& pool);

/// A tile of n elements; an operand marked scalar supplies its first element everywhere.
using BinaryTile = void (*)(const float* a, const float* b, float* y, size_t n);
struct BinaryTiles {
  BinaryTile vector_vector = nullptr;
  BinaryTile vector_scalar = nullptr;
  BinaryTile scalar_vector = nullptr;
};

/// Looks up the tile kernels of `op` at the SIMD level in force; all null where it has no vector code.
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
