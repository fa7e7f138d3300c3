// Comparisons, logic, integer arithmetic and selection on tiles of any element type, at the widest SIMD
// level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace trireme::cpu {

/// Functions of tensor/binary_math.h, with their meaning for every value.
enum class TypedOp : uint8_t {
  equal,  // comparisons give bool
  less,
  less_equal,
  greater,
  greater_equal,
  logical_and,
  logical_or,
  logical_xor,
  add,  // integers wrap
  sub,
  mul,
  min,
  max,
  bit_and,
  bit_or,
  bit_xor,
};

/// n elements; an operand marked scalar supplies its first element everywhere.
using TypedTile = void (*)(const void* a, const void* b, void* y, size_t n);
struct TypedTiles {
  TypedTile vector_vector = nullptr, vector_scalar = nullptr, scalar_vector = nullptr;
};

/// All null where there is no such function: comparisons take f32, i64, i32 and u8, equality also bool, logic
/// bool, arithmetic and bits i64, i32 and u8.
TypedTiles typed_tiles(TypedOp op, tensor::DType dtype);

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
