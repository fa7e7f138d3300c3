// Comparisons, logic, integer arithmetic and selection on tiles of any element type, at the widest SIMD
// level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/elementwise/binary_ops.h"
#include "tensor/dtype.h"

namespace trireme::cpu {

/// The function whose loops over tiles compute the operator `name`, if it has such loops: the comparisons of
/// tensor/elementwise_rows.inc and what is `tiled` there.
std::optional<BinaryOp> typed_op_of(std::string_view name);

/// n elements; an operand marked scalar supplies its first element everywhere.
using TypedTile = void (*)(const void* a, const void* b, void* y, size_t n);
struct TypedTiles {
  TypedTile vector_vector = nullptr, vector_scalar = nullptr, scalar_vector = nullptr;
};

/// All null where there are no such loops: comparisons take f32, i64, i32 and u8, equality also bool, logic
/// bool, arithmetic and bits i64, i32 and u8. Every value means what tensor/binary_math.h says.
TypedTiles typed_tiles(BinaryOp op, tensor::DType dtype);

/// y[i] = c[i] ? a[i] : b[i] on words of `bytes` 1, 2, 4 or 8; an operand with step 0 (else 1) supplies its
/// first element everywhere.
struct SelectWords {
  const void* c;
  const void* a;
  const void* b;
  void* y;
  int64_t c_step = 1, a_step = 1, b_step = 1;
  int bytes = 4;
};
void select_words(const SelectWords& args, size_t n);

}  // namespace trireme::cpu
