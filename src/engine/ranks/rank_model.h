// One rank's part of a model for inference: its stage of the pipeline, its parts of the weights, its programs
// by shape.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/prepared_model.h"
#include "engine/session_options.h"
#include "lower/inference.h"
#include "lower/program_cache.h"

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
  /// `options`: this rank's own, its strategy spread over tp and pp. `model` is shared by all ranks of a
  /// process. `device`: of this rank, as runtime::open_device() takes it.
  RankModel(std::shared_ptr<const PreparedModel> model, const SessionOptions& options, int rank,
            const std::string& device);

  /// Compiles these shapes, or finds them. Deterministic: the ranks' programs meet in the same collectives.
  /// Throws unsupported where a shape depends on data.
  std::shared_ptr<const RankProgram> program_for(const std::vector<tensor::Dims>& shapes);

  const ir::Graph& graph() const { return model_->graph(); }
  const tensor::MeshShape& mesh() const { return part_.place().mesh; }
  int stage() const { return part_.stage(); }
  int stages() const { return part_.stages(); }
  tensor::Device& device() { return *device_; }
  base::SharedCache& packs() { return packs_; }
  /// What storing matrices in few bits did to this rank's part.
  const passes::WeightReport& stored() const { return part_.stored(); }

 private:
  std::shared_ptr<const RankProgram> build(const std::vector<tensor::Dims>& shapes);

  std::shared_ptr<const PreparedModel> model_;
  lower::RankPart part_;
  std::unique_ptr<tensor::Device> device_;
  lower::InferenceTarget target_;
  base::SharedCache packs_;
  lower::ProgramCache<std::vector<tensor::Dims>, std::shared_ptr<const RankProgram>> programs_;
};

}  // namespace trireme::engine
