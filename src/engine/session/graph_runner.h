// Runs a graph for any input shapes: compiles one program per shape, cuts it where a shape depends on data.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/threads/thread_pool.h"
#include "compile/program.h"
#include "engine/arena.h"
#include "engine/run_stop.h"
#include "lower/batch_slices.h"
#include "lower/inference.h"
#include "lower/program_cache.h"
#include "passes/lists/lists.h"
#include "passes/pass.h"
#include "runtime/executor.h"

namespace trireme::engine {

/// What a runner needs from its session. All references outlive it.
struct RunnerContext {
  tensor::Device& device;
  tensor::Stream& stream;
  base::ThreadPool& pool;  ///< host threads for nodes evaluated outside programs
  base::SharedCache& packs;
  Arena& arena;
  compile::CompileOptions compile;
  passes::PassOptions passes;
  passes::Strategy strategy = {};
  size_t max_programs = 64;        ///< programs kept; the least recently used goes first
  runtime::DeviceBinding on = {};  ///< for devices that are not the CPU
  bool plan_only = false;          ///< programs are compiled and not run: there may be no such device here
  const RunStop* stop = nullptr;   ///< looked at between programs and before rounds of loops; null: never
  uint64_t compiles = 0;           ///< so far, by all runners of the session
};

/// One compiled shape of a graph: a program for all nodes whose shapes are known, then (if any are left)
/// nodes run one by one because their shapes need data, then a runner for each later part of the graph.
struct CompiledShape;

class GraphRunner {
 public:
  /// `graph` has gone through prepare_passes. `max_programs`: instead of the context's.
  GraphRunner(ir::Graph graph, RunnerContext& context, size_t max_programs = 0);
  ~GraphRunner();

  /// Results in output order. Throws invalid_argument for inputs the graph does not take.
  std::vector<tensor::Tensor> run(const std::vector<tensor::Tensor>& inputs, runtime::Trace* trace = nullptr);
  /// run() into tensors of the caller, which must have the results' types. Allocates nothing once the shape
  /// is compiled. Throws unsupported if the graph is not one static segment for these shapes.
  void run_into(const std::vector<tensor::Tensor>& inputs, std::vector<tensor::Tensor>& outputs,
                runtime::Trace* trace = nullptr);

  /// The program for these shapes if one covers the whole graph, else null: for run_at(), until the next call
  /// of any other function.
  CompiledShape* whole(const std::vector<tensor::Dims>& shapes);
  /// Types of the results of such a program.
  static tensor::DType result_dtype(const CompiledShape& shape, size_t i);
  static tensor::Dims result_dims(const CompiledShape& shape, size_t i);
  /// run_into() with addresses of inputs and results of the right types.
  void run_at(CompiledShape& shape, std::span<const void* const> inputs, std::span<void* const> outputs);

  /// Compiles (or finds) the program for these shapes: of one slice where the batch runs in slices.
  const compile::Program& program_for(const std::vector<tensor::Dims>& shapes);
  /// Parts of the batch that the program runs through one after another or on several threads; 1: the whole.
  int64_t slices(const std::vector<tensor::Dims>& shapes);
  /// Of a batch of these shapes: row i of every result is shown to depend on row i of the inputs alone. Kept
  /// by the extents of a row.
  bool keeps_rows_apart(const std::vector<tensor::Dims>& shapes);
  /// True if one program covers the whole graph for these shapes.
  bool is_static(const std::vector<tensor::Dims>& shapes);
  /// The same of the last run.
  bool last_was_static() const;
  const ir::Graph& graph() const { return graph_; }
  size_t programs() const { return compiled_.size(); }
  /// Constants that were folded for single shapes, in all.
  int64_t folded_bytes() const;
  /// Between runs: forgets the least recently used shapes until those constants take no more. Clients choose
  /// shapes, so what is kept to be faster next time would fill memory.
  void trim(int64_t most_bytes);
  /// Of the first compiled shape that has some: operators that run on the host of a device's program.
  std::string host_operators() const;

 private:
  CompiledShape& compiled_for(const std::vector<tensor::Tensor>& inputs);
  CompiledShape& compiled_for(const std::vector<tensor::Dims>& shapes);
  std::unique_ptr<CompiledShape> compile_shape(const std::vector<tensor::Dims>& shapes);
  lower::LoweredInference compile_ready(ir::Graph& ready, int threads);
  lower::SlicePlan slice_plan(const CompiledShape& shape, std::shared_ptr<const compile::Program>& one_row);
  void bind_arena(CompiledShape& shape);
  void check_types(const std::vector<tensor::Tensor>& inputs) const;
  void launch(CompiledShape& shape, const std::vector<tensor::Tensor>& inputs,
              std::vector<tensor::Tensor>& outputs, runtime::Trace* trace);
  void launch_at(CompiledShape& shape, std::span<const void* const> inputs, std::span<void* const> outputs,
                 runtime::Trace* trace);
  void check_stop() const;
  std::vector<tensor::Tensor> finish(CompiledShape& shape, const std::vector<tensor::Tensor>& inputs,
                                     std::vector<tensor::Tensor> computed);
  std::vector<tensor::Tensor> run_node(CompiledShape& shape, const ir::Node& node,
                                       std::vector<tensor::Tensor> in);

  ir::Graph graph_;
  RunnerContext& context_;
  base::ThreadPool serial_pool_{1};
  std::unique_ptr<tensor::Stream> serial_stream_;  ///< of lanes: kernels that stay on their thread
  lower::ProgramCache<std::vector<tensor::Dims>, CompiledShape> compiled_;
  std::map<std::vector<tensor::Dims>, bool> rows_apart_;  ///< what was shown, by shapes of one row
  CompiledShape* last_ = nullptr;  ///< the shape of the previous run, found without a search
};

}  // namespace trireme::engine
