// How one node is computed over the ranks of a mesh axis: the cheapest of the ways that its cut rule allows.
#pragma once

#include "passes/partition/partition_values.h"

namespace trireme::passes {

/// What later nodes would like a value to be: the placement of the state or output that it ends in.
using Wishes = std::vector<std::optional<tensor::Placement>>;

/// Wishes of all values, from declared states and outputs back through nodes of one operand.
Wishes find_wishes(const ir::Graph& graph, const Partitioning& how, const AxisRank& rank);

class NodeChooser {
 public:
  NodeChooser(const ir::Graph& from, AxisValues& values, const Wishes& wishes, bool is_sequence_axis)
      : from_(from), values_(values), wishes_(wishes), is_sequence_axis_(is_sequence_axis) {}

  /// Placements of the node's operands and results. Ties go to partial sums, then letters in order of
  /// appearance, then to the whole node on every rank. Throws invalid_argument where nothing is possible.
  CutFit choose(const ir::Node& node, Half half);

 private:
  struct Candidate {
    CutFit fit;
    double cost = kImpossible;
  };
  void consider(const CutFit& fit, double work);
  void consider_letters(const CutMatcher& matcher);
  void consider_partial(const CutMatcher& matcher);
  std::vector<int> sections_to_try(const CutMatcher& matcher, char letter);
  bool may_start(const CutMatcher& matcher, char letter);
  bool is_stream(ir::ValueId id) const;
  bool keeps_states(const CutFit& fit);
  double later_cost(size_t result, const tensor::Placement& p);
  [[noreturn]] void fail_impossible();

  const ir::Graph& from_;
  AxisValues& values_;
  const Wishes& wishes_;
  bool is_sequence_axis_;
  // Of the node that is being chosen for.
  const ir::Node* node_ = nullptr;
  const ir::NodeView* view_ = nullptr;
  Half half_ = Half::forward;
  double work_ = 0;
  Candidate best_;
};

}  // namespace trireme::passes
