// A session: a model made runnable. It owns threads, a stream, scratch memory and the programs of every
// bucket.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "engine/graph_runner.h"
#include "passes/strategy.h"
#include "passes/precision/weights.h"

namespace trireme::comm {
class Mesh;
}

namespace trireme::engine {

class RankService;
class ShardedSession;

struct SessionOptions {
  std::string device = "cpu";  ///< as runtime::open_device() takes it
  bool host_fallback =
      true;                ///< nodes that the device has no kernel for run on the CPU; else they are refused
  bool graphs = true;      ///< a device's launches are recorded once and replayed
  bool plan_only = false;  ///< programs are compiled, not run; the device need not be there
  int threads = 0;         ///< 0: all cores this process may use
  std::vector<int> cpus = {};    ///< pins thread i to cpus[i]; empty: not pinned
  size_t max_programs = 64;      ///< compiled shapes kept
  std::string only_kernel = {};  ///< "reference": run plain kernels where they exist
  int64_t memory_bytes = 0;      ///< programs that need more are refused; 0: what this process may use
  passes::PassOptions passes = {};
  passes::Precision precision = passes::Precision::f32;  ///< of products; results keep their types
  /// Ranks that hold the model together, by tp and pp: threads of this process, which share its cores.
  passes::Strategy strategy = {};
  /// The ranks of a job of that shape instead: this is rank 0 of it, the others follow(). Outlives the
  /// session.
  comm::Mesh* mesh = nullptr;
  /// Or: where a group of them is opened, on this first rank of a job, and the name by which the others load
  /// the model.
  RankService* service = nullptr;
  std::string model_key = {};
  /// Another thread sets it to end a run that takes too long: between programs and rounds of loops, not
  /// within a kernel. Outlives the session.
  const std::atomic<bool>* stop = nullptr;
};

/// A model after the passes that do not depend on shapes, with the packed weights all sessions share.
/// Immutable but for the cache, which locks itself; make one per model and share it.
class PreparedModel {
 public:
  /// `weights`: how matrices under products are stored; where several `ranks` hold the model, each stores its
  /// part of them.
  explicit PreparedModel(ir::Graph graph, const passes::PassOptions& options = {},
                         const passes::WeightOptions& weights = {}, int ranks = 1);
  const ir::Graph& graph() const { return graph_; }
  base::SharedCache& packs() const { return packs_; }
  const std::vector<passes::PassRecord>& records() const { return records_; }
  const passes::WeightReport& weights() const { return weights_; }
  /// How ranks store their parts; of one rank everything is done.
  const passes::WeightOptions& stored_by_ranks() const { return by_ranks_; }

 private:
  ir::Graph graph_;
  std::vector<passes::PassRecord> records_;
  passes::WeightReport weights_;
  passes::WeightOptions by_ranks_;
  mutable base::SharedCache packs_;
};

/// Runs a prepared model; one owner thread at a time. Several sessions of one model are instances: they share
/// weights.
class Session {
 public:
  Session(std::shared_ptr<const PreparedModel> model, const SessionOptions& options = {});
  ~Session();

  /// Inputs in the graph's order -> results in the graph's order. Compiles on the first call with new shapes.
  /// Throws invalid_argument for wrong types or shapes.
  std::vector<tensor::Tensor> run(const std::vector<tensor::Tensor>& inputs, runtime::Trace* trace = nullptr);
  /// Results into tensors of the caller; allocates nothing once these shapes are compiled.
  void run_into(const std::vector<tensor::Tensor>& inputs, std::vector<tensor::Tensor>& outputs,
                runtime::Trace* trace = nullptr);
  /// Compiles these input shapes now, so that the first request does not wait.
  const compile::Program& prepare(const std::vector<tensor::Dims>& shapes);
  /// How many times prepare()'s program runs for one batch of these shapes.
  int64_t slices(const std::vector<tensor::Dims>& shapes);
  /// Of a batch of these shapes: row i of every result is shown to depend on row i of the inputs alone.
  /// Compiles nothing; milliseconds for extents that are new.
  bool keeps_rows_apart(const std::vector<tensor::Dims>& shapes);
  bool is_static(const std::vector<tensor::Dims>& shapes);
  /// The same of the last run.
  bool last_was_static() const;

  const ir::Graph& graph() const { return model_->graph(); }
  int threads() const { return pool_.size(); }
  int64_t arena_bytes() const;
  /// Operators of a program compiled so far that run on the host though the device is another; empty for
  /// none.
  std::string host_operators() const;
  /// The ranks that hold the model, or null.
  ShardedSession* sharded() { return sharded_.get(); }
  base::ThreadPool& pool() { return pool_; }

 private:
  /// Lets go of what was kept for speed alone, where the memory of the process is tight.
  void trim();

  std::shared_ptr<const PreparedModel> model_;
  base::ThreadPool pool_;
  std::unique_ptr<tensor::Device> device_;
  std::unique_ptr<tensor::Stream> stream_;
  Arena arena_;
  RunnerContext context_;
  GraphRunner runner_;
  uint64_t trimmed_at_ = 0;                  ///< programs compiled until the last trim()
  std::unique_ptr<ShardedSession> sharded_;  ///< where several ranks hold the model; then it runs everything
};

}  // namespace trireme::engine
