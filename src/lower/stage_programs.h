// The programs of a pipeline stage in a training step, and the places of the values that cross between stages
// or are kept from the forward to the backward pass.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compile/program.h"
#include "lower/step_graphs.h"
#include "passes/pipeline/pipeline_flow.h"

namespace trireme::lower {

/// The layout of a buffer: named values one after another, each aligned.
struct BufferLayout {
  std::map<std::string, int64_t, std::less<>> at;  ///< offsets in bytes
  int64_t bytes = 0;

  void add(const std::string& name, const tensor::TensorType& type);
};

/// The buffers of a micro-batch in one part of the model; `none` stands for a scalar or an input of the
/// model.
enum class StageBuffer : uint8_t { none, in, out, in_gradient, out_gradient, kept, late };

/// Where a program finds an operand or leaves a result.
struct StageSlot {
  StageBuffer buffer = StageBuffer::none;
  int64_t offset = 0;  ///< bytes from the beginning of the buffer
  size_t feed = 0;     ///< if the buffer is `none`: the number of the model's input
};

struct StageProgram {
  ir::Graph graph;
  std::shared_ptr<const compile::Program> program;  ///< null if the schedule has no work of this kind
  std::vector<StageSlot> in, out;                   ///< of the program's inputs and outputs
};

/// A part of the model on this stage: forward, backward, and weight gradients where the schedule does them
/// apart.
struct LoweredStage {
  StepGraph step;  ///< its states, and the graph before it was split into programs
  StageProgram forward, backward, weights;
  std::string first_layer, last_layer;  ///< the layer that reads received values, that computes sent ones
  BufferLayout in, out, in_gradient, out_gradient, kept, late;

  StageSlot slot(const std::string& name) const;
  /// Bytes of the buffers for the micro-batches in flight.
  int64_t buffer_bytes(const passes::PipelineSlots& slots) const;
  /// Memory of activations: the largest program's arena and the buffers.
  int64_t peak_bytes(const passes::PipelineSlots& slots) const;
  const StageProgram& program(passes::PipelineWork work) const;
};

/// Compiles one graph of a stage.
using CompileStage = std::function<std::shared_ptr<const compile::Program>(ir::Graph&)>;

/// Splits the finished graph of a part and compiles its programs. `inputs`: names of the model's.
LoweredStage lower_stage(const passes::PipelinePart& part, bool splits_weights,
                         const std::vector<std::string>& inputs, const CompileStage& compile);

}  // namespace trireme::lower
