// Whole numbers that follow an extent n which is not known yet: shape arithmetic carried out for every n at
// once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/threads/thread_pool.h"
#include "ir/kernel.h"

namespace trireme::ops {

/// fixed + each * n for every n >= 1, or a number of which no more is known than that it may depend on n.
struct Count {
  int64_t fixed = 0, each = 0;
  bool is_any = false;

  static Count any() { return {0, 0, true}; }
  bool is_plain() const { return !is_any && each == 0; }
  /// each * n: an extent that is n rows of the same size.
  bool is_multiple() const { return !is_any && fixed == 0 && each > 0; }
  /// The number at one n; only if not is_any.
  int64_t at(int64_t n) const { return fixed + each * n; }
  bool operator==(const Count&) const = default;
};
/// The elements of a tensor, row-major.
using Counts = std::vector<Count>;

/// The elements of a small integer tensor, none of which depends on n.
Counts plain_counts(const tensor::Tensor& t);
bool are_plain(const Counts& counts);

/// Results of a node that reads its operand's extents and not its elements (shape, size); `extents` are those
/// of operand 0. nullopt for every other op.
std::optional<Counts> counts_of_extents(const ir::OpDef& op, const ir::NodeView& node, const Counts& extents);

/// Results of a node from counts: `in[i]` are the elements of operand i (empty if absent), `node` has the
/// types of all operands and results. What follows from no rule is Count::any(). Exact: a count that is not
/// `any` is the node's result for every n, where 64 bits hold it.
std::vector<Counts> follow_counts(const ir::OpDef& op, const ir::NodeView& node,
                                  const std::vector<Counts>& in, base::ThreadPool& pool);

}  // namespace trireme::ops
