// One rank's part of a model for inference: its stage of the pipeline, its parts of the weights, its programs
// by shape.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compile/program.h"
#include "engine/session.h"
#include "passes/pipeline/pipeline.h"
#include "passes/strategy.h"

namespace trireme::engine {

/// A rank's program for one set of input shapes.
struct RankProgram {
  std::shared_ptr<const compile::Program> program;
  int micro_batches = 1;       ///< that a batch goes through the stages in; the program is of one of them
  std::vector<size_t> inputs;  ///< of the model, that this stage reads; crossing values follow them
  std::vector<compile::SlotId> in,
      out;  ///< slots of the values that cross from the stage before and to the next
  std::vector<tensor::TensorType> results;  ///< of the whole model, in order; equal on all ranks
};

/// Used by one thread at a time; programs stay when the ranks that ran them are gone.
class RankModel {
 public:
  /// `strategy` spreads over tp and pp. `model` is shared by all ranks of a process. `device`: of this rank,
  /// as runtime::open_device() takes it.
  RankModel(std::shared_ptr<const PreparedModel> model, passes::Strategy strategy, int rank,
            compile::CompileOptions compile, const std::string& device = "cpu");

  /// Compiles these shapes, or finds them. Deterministic: the ranks' programs meet in the same collectives.
  /// Throws unsupported where a shape depends on data.
  const RankProgram& program_for(const std::vector<tensor::Dims>& shapes);

  const ir::Graph& graph() const { return model_->graph(); }
  const tensor::MeshShape& mesh() const { return mesh_; }
  int stage() const { return stage_; }
  int stages() const { return strategy_.pp; }
  tensor::Device& device() { return *device_; }
  base::SharedCache& packs() { return packs_; }

 private:
  std::unique_ptr<RankProgram> build(const std::vector<tensor::Dims>& shapes);
  ir::Graph partitioned(const ir::Graph& part, const std::map<std::string, tensor::Shard>& placed);
  void share_weights(ir::Graph& graph);

  std::shared_ptr<const PreparedModel> model_;
  passes::Strategy strategy_;
  tensor::MeshShape mesh_;
  std::vector<int> coordinates_;
  int stage_;
  std::unique_ptr<tensor::Device> device_;
  compile::CompileOptions compile_;
  base::SharedCache packs_;
  std::optional<passes::PipelineCut> cut_;         ///< the same for all shapes
  std::map<std::string, tensor::Tensor> weights_;  ///< this rank's parts, shared by the programs
  std::map<std::vector<tensor::Dims>, std::unique_ptr<RankProgram>> programs_;
};

}  // namespace trireme::engine
