// Whole numbers that name rows: made by counting the rows of a batch, used to look a row's own entries up.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/counts.h"

namespace trireme::ops {

/// Element `each * row + r` with low <= r <= high, where r is the same for every row and every number of
/// rows.
struct RowNumber {
  int64_t each = 0, low = 0, high = 0;

  /// Names one of the `inner` entries that belong to its own row, in a dimension of n * inner entries.
  bool is_own_entry(int64_t inner) const { return each == inner && low >= 0 && high < inner; }
};

/// The result of a node that counts upwards from a constant (`in`: the elements of its operands): `each_row`
/// whole entries for each row, none where it counts to a constant. nullopt for every other node.
struct CountedRows {
  RowNumber number;
  int64_t each_row = 0;
};
std::optional<CountedRows> counted_rows(const ir::OpDef& op, const std::vector<Counts>& in);

/// A node that repeats the whole of operand 0, which does not depend on the rows, once or several times for
/// each of them (`in`: the elements of its operands): the result has `each_row` entries of each row one after
/// another in dimension `dim`. nullopt for every other node.
struct RepeatedForRows {
  size_t dim = 0;
  int64_t each_row = 0;
};
std::optional<RepeatedForRows> repeated_for_rows(const ir::OpDef& op, const ir::NodeView& node,
                                                 const std::vector<Counts>& in);

/// What is known of every element of a node's one result from what is known of the operands': sums,
/// differences and products with constants, casts between integers, moves. nullopt: nothing. Constants have
/// `each` 0.
std::optional<RowNumber> follow_row_numbers(const ir::OpDef& op, const ir::NodeView& node,
                                            const std::vector<std::optional<RowNumber>>& in);

/// The least and the largest element of an integer constant that is not empty; nullopt for other types.
std::optional<RowNumber> range_of_constant(const tensor::Tensor& t);

/// Whether a node joins its operands along their last dimension.
bool joins_last_dimension(const ir::OpDef& op, const ir::NodeView& node);

/// A node that looks entries of operand 0 up by the numbers in operand 1, which may be negative to count from
/// the end.
struct EntryLookup {
  size_t dim = 0;           ///< of operand 0, in which the numbers are places
  bool by_columns = false;  ///< `dim` is not used: the d-th of the last dimension of operand 1 is a place in
                            ///< dimension d
};
std::optional<EntryLookup> entry_lookup(const ir::OpDef& op, const ir::NodeView& node);

}  // namespace trireme::ops
