// Holds an op's cut rule against the op itself: every cut that the rule allows is carried out part by part,
// and the parts' results must add up to those of the whole.
#pragma once

#include <string>
#include <vector>

#include "ir/attrs.h"

namespace trireme::tests {

struct CutCase {
  std::string op;
  std::vector<tensor::Tensor> in;  ///< in f64; an undefined tensor is an absent operand
  ir::Attrs attrs = {};
  size_t results = 1;
  int parts = 2;
  double tolerance = 1e-11;  ///< of results in f64, relative to the largest element
};

/// Cuts along every letter that `parts` ranks can cut, checks the linear operands, and holds single entries
/// of each letter against the whole (row_trial.h). Returns the letters that were cut, those of other rules of
/// the node after its first's.
std::string expect_cuts(const CutCase& c);

}  // namespace trireme::tests
