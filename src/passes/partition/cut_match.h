// What a cut rule says on one mesh axis: which operand placements fit it and what placements the results get.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/schema.h"
#include "tensor/shard.h"

namespace trireme::passes {

/// The cut rule of a node: its op's, else made from the op's index notation. An empty notation: no index of
/// the node may be cut (it may still be linear).
ir::CutRule cut_rule_of(const ir::OpSchema& op, const ir::NodeView& node);

/// Placements that go together on one axis, one for each operand and result; absent ones are replicated.
struct CutFit {
  std::vector<tensor::Placement> in, out;
};

/// One cut rule (without its `others`) taken apart, with the types of its node.
class CutMatcher {
 public:
  /// Throws internal for a rule that does not fit its node. `rule` and `node` outlive the matcher.
  CutMatcher(const ir::CutRule& rule, const ir::NodeView& node);
  const ir::CutRule& rule() const { return rule_; }

  /// Letters that stand for a dimension, in order of appearance.
  const std::string& letters() const { return letters_; }
  /// The letter of dimension `dim` of operand (result) i; '.' where there is none.
  char in_letter(size_t i, size_t dim) const { return at(in_, i, dim); }
  char out_letter(size_t i, size_t dim) const { return at(out_, i, dim); }

  /// Placements when `letter` is cut in `sections` (which count only where the rule leaves them free: a
  /// letter without units and sections). nullopt for sections that the rule does not have.
  std::optional<CutFit> cut(char letter, int sections = 1) const;
  /// Why `letter` cannot be cut over `ranks` in such a way: extents or units that do not divide, extents that
  /// must be 1. The node's types are those that the other axes leave, whole on this one.
  std::optional<std::string> refuse(char letter, const CutFit& fit, int ranks) const;
  /// Placements when the operands of rule.linear[mask] are partial sums.
  CutFit partial(size_t mask) const;

  /// The result placements that follow from operand placements, or a refusal in words.
  struct Result {
    std::vector<tensor::Placement> out = {};
    std::string refusal = {};
  };
  /// Extents and units do not count here: they were looked at when the placements were chosen.
  Result match(std::span<const tensor::Placement> in) const;

 private:
  static char at(const std::vector<std::string>& of, size_t i, size_t dim);
  int sections_of(bool is_result, size_t position, size_t dim, int free) const;
  bool has_fixed_sections(char letter) const;
  std::vector<tensor::Placement> results_of(char letter, int sections) const;
  Result match_partial(std::span<const tensor::Placement> in) const;
  Result match_split(std::span<const tensor::Placement> in) const;

  const ir::CutRule& rule_;
  const ir::NodeView& node_;
  std::vector<std::string> in_, out_;
  std::string letters_;
};

/// match() by a rule or, where it refuses, by one of its `others`. The refusal is the first rule's.
CutMatcher::Result match_cut(const ir::CutRule& rule, const ir::NodeView& node,
                             std::span<const tensor::Placement> in);

}  // namespace trireme::passes
