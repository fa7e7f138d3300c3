// Puts the rows of several requests into one model run and takes the results apart again.
#pragma once

#include <vector>

#include "base/clock.h"
#include "engine/session.h"
#include "sched/request.h"

namespace trireme::sched {

/// How a model's inputs are made equal in size.
struct Padding {
  std::vector<int64_t> row_buckets = {};     ///< the batch is filled up with zero rows to one of these; empty: exact
  std::vector<int64_t> length_buckets = {};  ///< dimension 1 of padded inputs is filled up with zeros to one of these
  std::vector<size_t> padded_inputs = {};    ///< inputs whose dimension 1 is a length (tokens and their mask)
};

/// Key of requests that may share a batch: equal types and inner extents after padding lengths to their bucket.
uint64_t group_key(const std::vector<tensor::Tensor>& inputs, const Padding& padding);

/// Runs batches on one session; keeps gathered inputs between runs.
class BatchRunner {
 public:
  BatchRunner(engine::Session& session, Padding padding);

  /// Runs all requests as one batch and calls their sinks. Requests must share a group key. Errors go to every sink.
  void run(std::vector<Request>& batch, const base::Clock& clock);
  /// Compiles and runs once the shape that `rows` requests like `example` make.
  void warm_up(const std::vector<tensor::Tensor>& example, int64_t rows);

 private:
  std::vector<tensor::Tensor> gather(const std::vector<Request>& batch, int64_t rows);
  engine::Session& session_;
  Padding padding_;
};

}  // namespace trireme::sched
