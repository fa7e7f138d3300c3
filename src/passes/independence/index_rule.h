// Where one node leaves an index that its operands hold: a letter of its cut rule, or a view's place among
// the elements.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops/counts.h"
#include "passes/independence/independence.h"

namespace trireme::passes {

/// A node whose operands hold the index at known places.
struct IndexRuleInput {
  const ir::OpSchema& schema;
  ir::NodeView node;  ///< typed for `entries` entries
  int64_t entries;
  std::vector<std::optional<IndexPlace>> places = {};  ///< by operand
  /// The extents that the schema's shape_operand asks for, where the number of entries is among them.
  ops::Counts extents = {};
};

struct IndexRuleResult {
  std::vector<std::optional<IndexPlace>> places = {};  ///< by result
  std::vector<bool> mixed = {};                        ///< by result: made of several entries
  std::string refusal = {};                            ///< why nothing is known, in words
};

/// Entry i of each result with a place depends on entry i of the operands with a place, and on the others,
/// bit for bit.
IndexRuleResult apply_index_rule(const IndexRuleInput& in);

}  // namespace trireme::passes
