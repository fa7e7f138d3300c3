// A session: a model made runnable. It owns threads, a stream, scratch memory and the programs of every
// bucket.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/prepared_model.h"
#include "engine/session_options.h"
#include "engine/session/graph_runner.h"

namespace trireme::engine {

class ShardedSession;

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
