// Holds what is said of an index that a node's operands hold against the node itself: entry i of a result
// from entry i of the operands alone, among others, among strangers.
#pragma once

#include <map>
#include <string>

#include "tests/op_cases.h"

namespace trireme::tests {

/// What was said and what was seen, of the ways in which operands may hold an index.
struct RowCounts {
  int shown = 0;    ///< results of which independence was shown, and held
  int unshown = 0;  ///< results of which nothing is said
  /// Of those, the ones that were seen to hold in all trials, by operator: what a finer rule would show.
  std::map<std::string, int> held_unshown = {};
};

/// Tries every way: one operand's dimension alone, those that share a letter of the cut rule, equal
/// dimensions of all operands. Fails the test where more is said than holds, bit for bit. `ask_all`: results
/// of which nothing is said are tried as well.
void try_rows(const OpCase& c, bool ask_all, RowCounts& counts);

}  // namespace trireme::tests
