// When collectives begin: as soon as what they read is there, gathers that only fill memory a little ahead of
// use.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace trireme::ops {

/// How many gathers may be under way or unread ahead of the computation.
inline constexpr int kPrefetch = 1;

/// A collective and the place where it begins: before the node at position `before`, after all nodes it
/// depends on.
struct Issue {
  size_t node = 0, before = 0;
};

/// The collectives of a sorted graph in the order in which they begin; none begins later than where it
/// stands. An all_gather, whose result is larger than its operand, begins with the first reader of the
/// `prefetch`-th all_gather before it; all others as soon as they can. `keep_order`: none overtakes another.
/// A function of the graph's structure alone, so ranks with the same collectives get the same order.
std::vector<Issue> issue_order(const ir::Graph& sorted, bool keep_order, int prefetch = kPrefetch);

}  // namespace trireme::ops
