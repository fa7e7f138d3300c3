// The norm of all gradients over all ranks, with the bits of one rank that holds them all.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ops/optim/norm_blocks.h"
#include "passes/train/train.h"

namespace trireme::passes {

/// Names of the axes on which a value is split, "dp,tp" in mesh order; empty where it is whole.
std::string split_axes(const ir::Graph& graph, ir::ValueId id);

/// Extents of the whole tensor of which the graph holds a part of equal length on every rank.
tensor::Dims whole_dims(const ir::Graph& graph, ir::ValueId id);

/// Blocks of this rank's part of a value, as many on every rank: those of the whole (ops/optim/norm_blocks.h)
/// where ranks of dp hold whole ones; a tensor-parallel part, whose length may differ between ranks, is one
/// block.
ops::NormBlocks local_blocks(const ir::Graph& graph, ir::ValueId id);

/// The ranks' vectors one after another: all_gather of `part` over `axes`; with no axes `part` itself.
ir::ValueId gathered_squares(ir::Graph& graph, ir::ValueId part, const std::string& axes,
                             const std::vector<int>& coordinates);
/// Ranks along the axes "dp,tp"; 1 for none.
int ranks_along(const tensor::MeshShape& mesh, const std::string& axes);

/// f32 []: the norm of the gradients, each distinct element counted once (training contract C13): what is
/// split over ranks is gathered as sums of squares of blocks, what is replicated is counted on every rank
/// alike. Blocks (ops/optim/norm_blocks.h) are added in the order of one rank wherever ranks of dp hold whole
/// blocks. `coordinates`: of this rank on graph.mesh.
ir::ValueId add_gradient_norm(ir::Graph& graph, std::span<const ParamGradient> gradients,
                              const std::vector<int>& coordinates);

}  // namespace trireme::passes
