// How passes recognise operators that read weights as they are stored.
#pragma once

#include <algorithm>
#include <string_view>

#include "ir/schema.h"

namespace trireme::ops {

/// Kinds of the attributes that say how bytes are weights: the name of a block format, and bits with scales
/// by groups. An operator with one of them reads weights as stored.
inline constexpr const char* kBlockFormatKind = "block format";
inline constexpr const char* kWeightBitsKind = "weight bits";

/// Whether the operator reads weights as stored. It is never folded, even if all operands are constant: the
/// result would be as large as the floats that storing them avoids.
inline bool reads_stored_weights(const ir::OpSchema& op) {
  return std::any_of(op.attrs.begin(), op.attrs.end(), [](const ir::AttrSpec& a) {
    return a.kind == kBlockFormatKind || a.kind == kWeightBitsKind;
  });
}

/// Whether result 0 is operand 0, a weight as it is stored, as a matrix of floats.
inline bool opens_stored_weight(const ir::OpSchema& op) {
  return op.name == "dequantize_weights" || op.name == "dequantize_blocks";
}

}  // namespace trireme::ops
