// Products of rows by the matrices of the experts that are chosen for them.
#pragma once

#include "ops/blocks/blocks.h"
#include "ops/weight_only/weight_only.h"

namespace trireme::ops {

/// Operands of expert_linear, weight_only_experts and block_experts: the first three of all.
enum ExpertOperand : size_t { kExX, kExChosen, kExWeights };
/// Where the others stand.
struct ExpertPlaces {
  size_t bias, shares;
};
inline constexpr ExpertPlaces kExpertPlaces{3, 4};        ///< of expert_linear and block_experts
inline constexpr ExpertPlaces kExpertStoredPlaces{5, 6};  ///< of weight_only_experts
inline constexpr size_t kExScale = 3, kExZero = 4;        ///< of weight_only_experts

/// Matrices in blocks have so many rows, or a multiple: those that lie side by side when they are packed.
inline constexpr int64_t kBlockExpertRows = 16;

/// Which experts a node has, of those that choices name. Attribute `parts`: rows of choices have a first
/// dimension of so many, in each of which stand the products by the experts of that part, and zeros for
/// choices of others; parts are neighbours, as many experts each, and a rank has one of them. Without it
/// there is no such dimension, and a node has all experts.
struct ExpertsHere {
  bool has_parts = false;
  int64_t parts = 1;           ///< of the experts here
  int64_t first = 0, all = 0;  ///< number of the first one here; how many choices may name
};
/// Copies the attributes that say it from one node to another.
void copy_experts_here(const ir::Attrs& from, ir::Attrs& to);

/// Extents of a node.
struct ExpertExtents {
  int64_t tokens = 0, choices = 0;    ///< choices of each token
  int64_t experts = 0, n = 0, k = 0;  ///< matrices [n, k] of the experts here
  bool sums = false;                  ///< the choices of a token are summed by their shares
  ExpertsHere here = {};
  int64_t rows() const { return tokens * choices; }
};
ExpertExtents expert_extents(const ir::NodeView& node);

/// The operands of a node that has a weight of all experts, by its operator; null: it is none of these.
const ExpertPlaces* expert_places(const ir::OpSchema& op);

/// Why matrices of `n` rows in blocks do not serve as those of experts, or nothing.
ir::Refusal refuse_block_experts(int64_t n);

std::vector<ir::Kernel> expert_linear_cpu_kernels();
std::vector<ir::Kernel> weight_only_experts_cpu_kernels();
std::vector<ir::Kernel> block_experts_cpu_kernels();

}  // namespace trireme::ops
