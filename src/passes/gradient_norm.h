// The norm of all gradients over all ranks, with the bits of one rank that holds them all.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "passes/train.h"

namespace trireme::passes {

/// Names of the axes on which a value is split, "dp,tp" in mesh order; empty where it is whole.
std::string split_axes(const ir::Graph& graph, ir::ValueId id);

/// Extents of the whole tensor of which the graph holds a part of equal length on every rank.
tensor::Dims whole_dims(const ir::Graph& graph, ir::ValueId id);

/// f32 []: the norm of the gradients, each distinct element counted once (training contract C13): what is
/// split over ranks is gathered as sums of squares of blocks, what is replicated is counted on every rank
/// alike. Blocks (ops/optim/norm_blocks.h) are added in the order of one rank wherever ranks of dp hold whole
/// blocks. `coordinates`: of this rank on graph.mesh.
ir::ValueId add_gradient_norm(ir::Graph& graph, std::span<const ParamGradient> gradients,
                              const std::vector<int>& coordinates);

}  // namespace trireme::passes
