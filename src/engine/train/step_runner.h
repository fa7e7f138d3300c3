// Runs the compiled parts of a training step on this rank's device.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/threads/thread_pool.h"
#include "engine/train/train_options.h"
#include "engine/train/train_states.h"
#include "lower/step_phases.h"
#include "runtime/executor.h"

namespace trireme::engine {

struct StepInputs;
struct StepResult;

/// Inputs of a step's programs that are no data.
struct StepScalars {
  const StepInputs& inputs;
  std::array<int64_t, 3> rng;  ///< seed, step, first row
  int64_t count;               ///< micro-batches before this one

  /// The address of the input `name`, or null if it is data.
  const void* find(std::string_view name) const;
};

/// One compiled part of a step with the memory of its results.
struct BoundStep {
  ir::Graph graph;
  std::shared_ptr<const compile::Program> program;
  std::unique_ptr<runtime::Executor> executor;
  std::vector<lower::StepPhase> phases;  ///< per step of the program
  std::vector<tensor::Tensor> results;  ///< in the order of the graph's outputs; none where they cross stages
  void* arena = nullptr;                ///< what the executor was bound to last
  runtime::Trace trace;
  int64_t run_ns = 0;  ///< of the last run on a device, whose steps are not timed each time
  std::vector<const void*> in;
  std::vector<void*> out;

  /// The scalar result `name` as a number; 0 if there is none.
  double number(std::string_view name) const;
  /// The scalar results of a step's last part, and the times of this run by phase, which are added.
  void read_results(StepResult& result) const;
};

/// A device with threads, a stream and scratch memory that all parts of a step use one after another.
class StepRunner {
 public:
  explicit StepRunner(const TrainOptions& options);

  /// `is_crossing`: of inputs and outputs that stay on the device between programs; their results get no
  /// memory here.
  std::unique_ptr<BoundStep> bind(ir::Graph graph, std::shared_ptr<const compile::Program> program,
                                  TrainStates& states,
                                  const std::function<bool(const std::string&)>& is_crossing = {});
  /// Memory for the results of a program that crosses nothing.
  static void add_results(BoundStep& step);
  /// Runs with the operands in step.in and step.out. Each step of the program is timed in every run on the
  /// CPU, in the first on a device, where later runs are timed as a whole.
  void run(BoundStep& step, TrainStates& states);
  /// run() into step.results. `feeds`: of the micro-batch, in the order of the program's inputs.
  void run(BoundStep& step, const std::vector<tensor::Tensor>& feeds, const StepScalars& scalars,
           TrainStates& states);

  base::ThreadPool& pool() { return pool_; }
  const base::ThreadPool& pool() const { return pool_; }
  tensor::Device& device() const { return *device_; }
  tensor::Stream& stream() { return *stream_; }
  const std::string& device_name() const { return device_name_; }
  base::SharedCache& packs() { return packs_; }
  runtime::DeviceBinding& binding() { return on_; }
  bool is_on_device() const { return on_.device != nullptr; }

 private:
  void use_arena(BoundStep& step);

  base::ThreadPool pool_;
  std::string device_name_;
  std::unique_ptr<tensor::Device> device_;
  std::unique_ptr<tensor::Stream> stream_;
  base::SharedCache packs_;
  comm::Mesh* mesh_;
  runtime::DeviceBinding on_;
  std::shared_ptr<void> arena_;
  int64_t arena_bytes_ = 0;
};

}  // namespace trireme::engine
