// A training session: one loss graph made trainable, its states, and the programs of its steps.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/state_store.h"
#include "passes/optimizer.h"
#include "passes/pass.h"
#include "passes/precision.h"
#include "passes/recompute.h"
#include "passes/strategy.h"
#include "runtime/executor.h"

namespace trireme::comm {
class Mesh;
}

namespace trireme::engine {

/// Inputs of one micro-batch, in the order of the loss graph's inputs.
using Feeds = std::vector<tensor::Tensor>;

struct TrainOptions {
  passes::OptimizerOptions optimizer;
  passes::PrecisionOptions precision = {};  ///< of products; weights, moments and statistics stay f32
  bool scaled_loss = false;                 ///< loss_weight carries a loss scale, grad_scale its inverse
  bool guarded = false;                     ///< steps above norm_limit or loss_limit change nothing
  passes::RecomputeMode recompute = passes::RecomputeMode::none;
  int64_t activation_bytes = 0;  ///< above 0: recompute as little as keeps activations under this many bytes
  std::vector<std::string> freeze = {};  ///< params whose name contains one of these are not trained
  std::string device = "cpu";
  int threads = 0;  ///< 0: all cores this process may use
  std::vector<int> cpus = {};
  int64_t memory_bytes = 0;  ///< programs that need more are refused; 0: what this process may use
  passes::PassOptions passes = {};
  /// The ranks that train together, of the shape strategy.mesh(); null: this one alone. Outlives the session,
  /// whose construction, step(), prepare() and trained_graph() are then collective.
  comm::Mesh* mesh = nullptr;
  passes::Strategy strategy = {};
};

/// What a step wants besides its data.
struct StepInputs {
  float lr = 0;
  int64_t step = 1;  ///< count of executed updates, from 1: Adam's bias correction
  int64_t seed = 0;  ///< of dropout
  int64_t draw = 0;  ///< count of steps begun: tells the random numbers of steps apart
  /// Row of the step's first micro-batch (of all ranks) in the global batch: places random numbers. All
  /// micro-batches of a step have as many rows.
  int64_t first_row = 0;
  float loss_weight = 1;  ///< 1 / valid targets of the whole step on all ranks, times the loss scale
  float grad_scale = 1;   ///< 1 / loss scale
  float norm_limit = INFINITY, loss_limit = INFINITY;  ///< of guarded sessions: gradient norm, mean loss
};

/// Numbers of the whole step, equal on all ranks; times are this rank's.
struct StepResult {
  double loss_sum = 0;   ///< over the valid targets of all micro-batches, unscaled
  double count = 0;      ///< valid targets; 0 if the graph has no output "count"
  double correct = 0;    ///< of them predicted right; 0 if the graph has no output "correct"
  double grad_norm = 0;  ///< of the unscaled gradients before clipping
  bool skipped = false;  ///< nothing changed: something was not finite or above a limit
  int64_t forward_ns = 0, backward_ns = 0, update_ns = 0;
};

/// A parameter as the optimizer sees it, for the run's record.
struct TrainedParam {
  std::string name;
  tensor::Dims dims;
  bool is_reached = true;  ///< false: the loss does not depend on it, so it keeps its content
};

/// Trains a graph whose output "loss_sum" is the sum of the loss over valid targets. Its float params of more
/// than one element become states; running statistics of batch norms too, untrained. One owner thread.
class TrainSession {
 public:
  /// Throws unsupported naming the node that cannot be differentiated once the first step is prepared.
  TrainSession(const ir::Graph& loss_graph, const TrainOptions& options);
  ~TrainSession();

  /// Forward and backward of every micro-batch, then one update. Programs are compiled per shape of the feeds
  /// and kept. Bits depend on the feeds, the inputs and the states only. Throws invalid_argument for feeds
  /// the graph does not take; states are unchanged then.
  StepResult step(std::span<const Feeds> micro_batches, const StepInputs& inputs);
  /// A step of one micro-batch.
  StepResult step(const Feeds& feeds, const StepInputs& inputs) { return step({&feeds, 1}, inputs); }
  /// Which of the step's micro-batches this rank takes as its number `i` of `per_rank` (all of one length, as
  /// many on each data-parallel rank). Runs of neighbours, or with ZeRO 2 and 3 every dp-th.
  size_t own_micro_batch(size_t i, size_t per_rank) const;
  /// Compiles the programs of a step of `micro_batches` micro-batches of these shapes.
  void prepare(const std::vector<tensor::Dims>& shapes, size_t micro_batches);

  StateStore& states() { return states_; }
  const StateStore& states() const { return states_; }
  const std::vector<TrainedParam>& params() const { return params_; }
  /// The loss graph with the present weights as params, which share the bytes of the states: use it before
  /// the next step or clone them. `ema`: the averaged weights where the optimizer keeps them.
  ir::Graph trained_graph(bool ema = false) const;
  /// The graph of a whole step after all passes, for `inspect` and tests.
  const ir::Graph& step_graph(const std::vector<tensor::Dims>& shapes, size_t micro_batches);
  /// Programs of a step: one, or one per micro-batch and the update.
  std::vector<const compile::Program*> programs(const std::vector<tensor::Dims>& shapes,
                                                size_t micro_batches);
  /// Times of the steps of the first program of programs(), as its last run measured them.
  const runtime::Trace& trace(const std::vector<tensor::Dims>& shapes, size_t micro_batches);
  /// What the optimizer decided, for printing: groups, decays, states.
  const std::string& optimizer_text() const { return optimizer_text_; }
  /// What computes in 16 bits and what stays f32, with reasons; empty for f32. After the first prepare().
  const std::string& precision_text() const { return precision_text_; }
  int threads() const { return pool_.size(); }

 private:
  struct StepProgram;
  enum class Part : uint8_t { whole, gradients, update };
  StepProgram& program_for(const std::vector<tensor::Dims>& shapes, Part part);
  std::unique_ptr<StepProgram> build(const std::vector<tensor::Dims>& shapes, Part part);
  ir::Graph whole_graph(const std::vector<tensor::Dims>& shapes, Part part);
  ir::Graph update_graph();
  ir::ValueId mean_loss(ir::Graph& graph, ir::ValueId loss_sum) const;
  /// `loss`: f32 [], the mean loss of the step, or kNoValue where the session is not guarded.
  void add_update(ir::Graph& graph, const std::vector<passes::ParamGradient>& gradients, ir::ValueId loss);
  void take_states(ir::Graph& graph);
  std::shared_ptr<const compile::Program> compile_step(ir::Graph& graph);
  std::shared_ptr<const compile::Program> fit_activations(ir::Graph& graph,
                                                          const compile::CompileOptions& options);
  void zero_gradients();
  void launch(StepProgram& program, const Feeds& feeds, const StepInputs& inputs, int64_t first_row);
  void read_results(const StepProgram& program, StepResult& result) const;
  std::vector<tensor::Dims> shapes_of(const Feeds& feeds) const;

  TrainOptions options_;
  ir::Graph model_;     ///< the loss graph as given, its params' content dropped
  ir::Graph training_;  ///< its training form: params are states
  StateStore states_;
  std::vector<TrainedParam> params_;
  std::string optimizer_text_, precision_text_;
  float step_loss_ = 0;  ///< what the update of several micro-batches is fed
  base::ThreadPool pool_;
  std::unique_ptr<tensor::Device> device_;
  std::unique_ptr<tensor::Stream> stream_;
  base::SharedCache packs_;
  std::shared_ptr<void> arena_;
  int64_t arena_bytes_ = 0;
  std::map<std::pair<std::vector<tensor::Dims>, Part>, std::unique_ptr<StepProgram>> programs_;
};

}  // namespace trireme::engine
