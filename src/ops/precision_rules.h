// The classes of mixed precision that operators are declared with, after PyTorch's autocast lists for CPU and
// CUDA; what those promote (sums of two, concat) follows its operands here.
#pragma once

#include "ir/precision_rule.h"

namespace trireme::ops {

using PrecisionKind = ir::PrecisionRule::Kind;

inline constexpr ir::PrecisionRule kProduct{PrecisionKind::product, "product, sums in f32"};
/// One rounding per element: no worse than that of the operands.
inline constexpr ir::PrecisionRule kRounds{PrecisionKind::follows, "one rounding per element"};
inline constexpr ir::PrecisionRule kMoves{PrecisionKind::follows, "moves elements"};
inline constexpr ir::PrecisionRule kStatistics{PrecisionKind::kept, "statistics"};
inline constexpr ir::PrecisionRule kSumsMany{PrecisionKind::kept, "sum over many elements"};
inline constexpr ir::PrecisionRule kLoss{PrecisionKind::kept, "loss"};
inline constexpr ir::PrecisionRule kRange{PrecisionKind::kept, "range or error of exp, log and powers"};
/// f32, because nobody has looked at what 16 bits do.
inline constexpr ir::PrecisionRule kUnknown{};

/// Attention whose first `operands` operands (queries, keys and values) are lowered; a mask stays f32, since
/// it may hold the lowest f32, which 16 bits do not.
constexpr ir::PrecisionRule attention_precision(size_t operands) {
  return {PrecisionKind::product, "products, softmax and sums in f32", operands};
}

}  // namespace trireme::ops
