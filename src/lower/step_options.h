// The settings and the rank that determine, besides the loss graph, the programs of a training step.
#pragma once

#include <string>
#include <vector>

#include "passes/pass.h"
#include "passes/strategy.h"
#include "passes/train/optimizer.h"
#include "tensor/mesh.h"

namespace trireme::lower {

/// One rank of a mesh. Programs can be compiled for it without a communicator: coordinates are all they need.
struct RankPlace {
  tensor::MeshShape mesh = {};
  std::vector<int> coordinates = {};  ///< on the axes of the mesh

  bool is_alone() const { return mesh.size() == 1; }
  /// The coordinate on an axis; 0 where the mesh does not have it.
  int on(std::string_view axis) const { return mesh.has(axis) ? coordinates[mesh.index_of(axis)] : 0; }
};

struct StepOptions {
  passes::OptimizerOptions optimizer;
  bool scaled_loss = false;              ///< loss_weight carries a loss scale, grad_scale its inverse
  bool guarded = false;                  ///< steps above norm_limit or loss_limit change nothing
  std::vector<std::string> freeze = {};  ///< params whose name contains one of these are not trained
  passes::PassOptions passes = {};
  passes::Strategy strategy = {};
};

}  // namespace trireme::lower
