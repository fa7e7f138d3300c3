// Builds the index notation of a cut rule operand by operand.
#pragma once

#include <string>
#include <vector>

#include "ops/cut.h"

namespace trireme::ops {

/// `n` letters from `first` on: "abc".
inline std::string letters(size_t n, char first = 'a') {
  return cut_letters(n, static_cast<size_t>(first - 'a'));
}
/// `n` dimensions that are never cut.
inline std::string dots(size_t n) { return std::string(n, '.'); }

/// The parts of a node's notation. An operand or result that is not set stays whole: a dot for each
/// dimension. Absent operands have an empty part.
class CutNotation {
 public:
  explicit CutNotation(const ir::NodeView& node);
  /// Letters of operand or result `i`, one a dimension; nothing happens where there is none.
  CutNotation& in(size_t i, std::string letters);
  CutNotation& out(size_t i, std::string letters);
  /// Operand `i` broadcasts to a value with these letters: aligned to the right, extents of 1 are whole.
  CutNotation& broadcast(size_t i, const std::string& letters);
  /// "ab,b->ab".
  std::string text() const;

 private:
  const ir::NodeView& node_;
  std::vector<std::string> in_, out_;
};

/// Sets a count (heads, groups) to the rank's share of it: count local / global. Leaves absent and 0 alone.
void share_count(ir::LocalNode& node, const char* attr, int64_t local, int64_t global);

}  // namespace trireme::ops
