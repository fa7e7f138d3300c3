// What 16-bit floats do to an operator: which class mixed precision puts it in, and which of its kernels on
// devices read and write 16 bits while they compute in f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme::ir {

inline constexpr size_t kVariadic = 1u << 30;  ///< of operands or results: any number

/// How mixed precision treats a node.
struct PrecisionRule {
  enum class Kind : uint8_t {
    kept,     ///< computes in f32
    product,  ///< reads 16 bits, sums in f32, hands out 16 bits
    follows,  ///< 16-bit where all its float operands are
    paged,    ///< has the type of its pages, which are operand `operands`: the operands before it follow it
  };
  Kind kind = Kind::kept;
  std::string_view why = "not known to bear 16 bits";
  size_t operands = kVariadic;  ///< of a product: the first so many become 16-bit, the others stay f32
};

/// Operators that compute along rows in f32 for operands of any float type, so that devices need no casts.
struct HalfRows {
  /// Bit mask of operands that may be 16-bit, all of one type, while others (weights, statistics, targets)
  /// stay f32; results that hold elements have the type of operand 0. 0: the op has no such kernels.
  uint32_t operands = 0;
  /// Bit mask of operands that may be 16-bit beside f32 ones in `operands`: a gradient that arrives.
  uint32_t alone = 0;
  /// The further result that holds result 0 rounded (attribute `rounded`); -1: there is none.
  int rounded = -1;
};

}  // namespace trireme::ir
