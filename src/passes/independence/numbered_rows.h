// Rows that a graph counts, and the lookups by such numbers through which each row reaches its own entries
// alone: the masks that PyTorch's exporters write for attention, the last token of each sequence.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "ir/graph.h"
#include "ops/row_numbers.h"
#include "passes/independence/independence.h"

namespace trireme::passes {

/// What is known of the whole numbers in a graph whose index is being followed. References outlive it.
class NumberedRows {
 public:
  /// `uses`: by value, of all that stand before the node that is asked about.
  NumberedRows(const ir::Graph& graph, const std::vector<IndexUse>& uses) : graph_(graph), uses_(uses) {}

  /// Of a node that counts the rows: where its result has them. `in`: the elements of its operands.
  std::optional<IndexPlace> counted(const ir::Node& node, const std::vector<ops::Counts>& in) const;
  /// Of a node whose operand 1 holds numbers of rows: where its result has the rows, if each row looks up its
  /// own entries of operand 0 alone.
  std::optional<IndexPlace> looks_up_own(const ir::Node& node) const;
  /// Remembers what follows for the one result of a node, whose use is known.
  void note(const ir::Node& node, const std::vector<ops::Counts>& in);

 private:
  /// Of the elements of a value, or of those at one place of its last dimension.
  struct Known {
    bool is_clean = true;  ///< they do not depend on the number of their row
    std::optional<ops::RowNumber> number = {};
  };

  const IndexUse& use(ir::ValueId id) const { return uses_[ir::index(id)]; }
  Known known_of(ir::ValueId id) const;
  std::vector<Known> places_of(ir::ValueId id, int64_t extent) const;

  const ir::Graph& graph_;
  const std::vector<IndexUse>& uses_;
  std::map<ir::ValueId, std::vector<Known>> known_;  ///< of all elements, or by place of the last dimension
};

}  // namespace trireme::passes
