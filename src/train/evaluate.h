// Evaluation: the loss graph as it stands, without updates, over a data set in its order.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "data/loader/loader.h"
#include "ir/graph.h"
#include "train/config/feed.h"
#include "train/ranks/ranks.h"
#include "train/report/run_log.h"

namespace trireme::engine {
class PreparedModel;
}

namespace trireme::train {

struct EvaluatorOptions {
  int64_t batch = 32;       ///< rows at once
  int64_t max_batches = 0;  ///< 0: the whole data set
  int64_t ignore_index = -100;
  int threads = 0;
  std::string device = "cpu";
  int workers = 2;
  FeedRules feed = {};
  std::vector<std::string> target_inputs = {};
  Ranks ranks = {};
};

/// Every sample counts exactly once: the last batch is cut to what is there, or where the graph takes a fixed
/// number of rows, filled up with rows whose integer targets do not count. Ranks take the batches in turn,
/// each with the whole model; sums are added in the order of the batches. The result does not depend on
/// threads, workers or ranks.
class Evaluator {
 public:
  /// `graph` says which inputs there are; run() gets the graph with the weights of the moment. Throws
  /// invalid_argument where batches of a fixed number of rows do not fit the data and the loss takes floats.
  Evaluator(const ir::Graph& graph, data::DatasetPtr dataset, data::Transform transform,
            EvaluatorOptions options, base::Clock& clock);

  /// Means over the valid targets; the same on every rank. `loss_graph` has the outputs loss_sum, count and
  /// perhaps correct. An error on one rank is thrown on all of them.
  /// `lend`: gives the model what is on the device already.
  using Lend = std::function<void(const engine::PreparedModel&)>;
  EvalRecord run(const ir::Graph& loss_graph, int64_t step, const Lend& lend = {});

 private:
  struct Sums {
    std::vector<double> batches;            // loss, count, correct of each of this rank's batches, in order
    std::vector<double> predicted, wanted;  // similarities, of all of them
  };
  void take_fixed_batches(int64_t samples);
  Sums run_batches(const ir::Graph& loss_graph, const Lend& lend);
  Sums run_on_all_ranks(const ir::Graph& loss_graph, const Lend& lend);
  std::vector<double> in_order(const std::vector<double>& mine, size_t per_batch) const;

  EvaluatorOptions options_;
  base::Clock& clock_;
  Feeder feeder_;
  data::Loader loader_;  // of the fields that are fed
};

/// Spearman's: Pearson correlation of the ranks, ties sharing the mean of theirs. 0 if one side is constant.
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b);

/// Column `name` of a session's results; negative if the graph has no such output.
double scalar_output(const ir::Graph& graph, const std::vector<tensor::Tensor>& outputs,
                     const std::string& name);

}  // namespace trireme::train
