// One mesh axis seen from one rank: extents and content of its parts, and a node's attributes for them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "passes/partition/cut_match.h"

namespace trireme::passes {

/// An axis of the mesh and this rank's place on it.
struct AxisRank {
  size_t axis = 0;
  std::string name;
  int ranks = 1, index = 0;
};

/// Extents of this rank's part of a tensor of `dims`.
tensor::Dims part_dims(const tensor::Dims& dims, const tensor::Placement& placement, const AxisRank& rank);
/// First index of the part (of its first section).
tensor::Dims part_begin_of(const tensor::Dims& dims, const tensor::Placement& placement,
                           const AxisRank& rank);
/// The content of the part: shared where it is whole, else a copy. Throws unsupported for packed elements.
tensor::Tensor part_of(const tensor::Tensor& whole, const tensor::Placement& placement, const AxisRank& rank);

/// A node's attributes and constant operands as the part of it needs them.
struct PartNode {
  ir::Attrs attrs;
  std::vector<std::pair<size_t, tensor::Tensor>> constants;  ///< by operand: those that change
};
PartNode part_node(const ir::OpSchema& op, const ir::NodeView& node, const CutFit& fit, const AxisRank& rank);

}  // namespace trireme::passes
