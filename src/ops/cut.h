// Building blocks of cut rules: letters for dimensions, and the rule of elementwise operators.
#pragma once

#include <string>
#include <vector>

#include "ir/schema.h"

namespace trireme::ops {

/// `count` letters from the `first`-th on, a to z and A to Z; '.' beyond.
std::string cut_letters(size_t count, size_t first = 0);

/// Operands that broadcast against each other: a letter for each dimension of result 0; dimensions of 1 that
/// are repeated have none. All results have the shape of result 0. Every letter may be cut unevenly: elements
/// do not know each other.
ir::CutRule broadcast_cut(const ir::NodeView& node, std::vector<uint32_t> linear = {});

/// broadcast_cut as a schema's `cut`.
ir::CutFn elementwise_cut(std::vector<uint32_t> linear = {});

/// One operand and result of the same dimensions (others absent or whole): a letter each, '.' where `whole`.
ir::CutRule same_dims_cut(const ir::NodeView& node, const std::vector<bool>& whole);

}  // namespace trireme::ops
