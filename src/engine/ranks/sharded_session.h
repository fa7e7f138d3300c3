// A session whose model several ranks hold together: the first rank leads, the others follow what it is
// asked.
#pragma once

#include <memory>
#include <vector>

#include "engine/ranks/rank_group.h"
#include "engine/ranks/rank_runner.h"

namespace trireme::engine {

/// Ranks are threads of this process, which this object starts, and starts again after one was lost; or those
/// of `SessionOptions::mesh`, of which this is rank 0 while the others run follow(). One owner thread.
class ShardedSession {
 public:
  ShardedSession(std::shared_ptr<const PreparedModel> model, const SessionOptions& options);
  ~ShardedSession();
  ShardedSession(const ShardedSession&) = delete;
  ShardedSession& operator=(const ShardedSession&) = delete;

  /// Throws invalid_argument for inputs the model does not take, unavailable where a rank was lost meanwhile:
  /// the next call finds new ranks.
  std::vector<tensor::Tensor> run(const std::vector<tensor::Tensor>& inputs, runtime::Trace* trace);
  void run_into(const std::vector<tensor::Tensor>& inputs, std::vector<tensor::Tensor>& outputs,
                runtime::Trace* trace);
  /// Compiles these shapes on every rank. The program of the first rank.
  const compile::Program& prepare(const std::vector<tensor::Dims>& shapes);
  int64_t arena_bytes() const;
  int ranks() const { return static_cast<int>(models_.size()); }
  /// Takes a rank away, as if its thread had died; for tests. From any thread.
  void lose(int rank) { ranks_->lose(rank); }
  /// How often ranks were started again.
  int restarts() const { return ranks_->restarts(); }

 private:
  void check_types(const std::vector<tensor::Tensor>& inputs) const;
  void find_indices();

  std::shared_ptr<const PreparedModel> model_;
  SessionOptions options_;
  std::vector<std::unique_ptr<RankModel>> models_;  ///< by rank, of this process
  std::unique_ptr<RankGroup<RankRunner>> ranks_;
  struct Indices {
    size_t input;
    int64_t rows;
  };
  std::vector<Indices> indices_;  ///< inputs that are row numbers of tables
};

/// What the other ranks of `options.mesh` do: answers the first rank until its session ends.
void follow(std::shared_ptr<const PreparedModel> model, const SessionOptions& options);
/// The same over a group that a RankService opened.
void follow(std::shared_ptr<const PreparedModel> model, const SessionOptions& options,
            comm::Communicator& group);

}  // namespace trireme::engine
