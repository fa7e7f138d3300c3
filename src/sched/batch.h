// Puts the rows of several requests into one model run and takes the results apart again.
#pragma once

#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/session/session.h"
#include "sched/request.h"

namespace trireme::sched {

/// A dimension of an input that is filled up with a value, or of an output that is cut to what the request
/// had.
struct PaddedSide {
  size_t tensor = 0;     ///< input, or output
  size_t dim = 1;        ///< after the batch's
  double value = 0;      ///< of the filling, in the input's type
  size_t input = 0;      ///< of an output: whose length it has,
  size_t input_dim = 1;  ///< in this dimension
};

/// How a model's inputs are made equal in size.
struct Padding {
  bool is_batched = true;  ///< dimension 0 counts rows; false: requests run alone, as they are
  /// Nobody said that rows are independent: it is shown for the extents of each batch, or its requests run
  /// alone, as they are.
  bool is_shown = false;
  std::vector<int64_t> row_buckets =
      {};  ///< the batch is filled up with zero rows to one of these; empty: exact
  std::vector<int64_t> length_buckets =
      {};  ///< dimension 1 of padded inputs is filled up with zeros to one of these
  std::vector<size_t> padded_inputs = {};  ///< inputs whose dimension 1 is a length (tokens and their mask)
  std::vector<PaddedSide> padded_sides = {};     ///< further ones, at most one of each input
  std::vector<tensor::Tensor> idle_row = {};     ///< inputs of rows that nobody sent; empty: zeros
  std::vector<PaddedSide> cropped_outputs = {};  ///< lengths that outputs have of them
};

/// Hash of what same_group compares.
uint64_t group_key(const std::vector<tensor::Tensor>& inputs, const Padding& padding);
/// True if both may share a batch: equal types and inner extents after padding lengths to their bucket;
/// scalars equal in value. Exact, because clients choose shapes and can make hashes meet.
bool same_group(const std::vector<tensor::Tensor>& a, const std::vector<tensor::Tensor>& b,
                const Padding& padding);

/// Shapes to make ready before traffic: `example` (one row) at each of these row counts.
struct WarmUp {
  std::vector<tensor::Tensor> example;
  std::vector<int64_t> rows = {1};
  bool is_run = true;  ///< also run it once, which touches weights and memory; else only compile
  /// Nobody gave the values: a model that refuses them, or whose loops go on for long with them, serves
  /// nevertheless.
  bool is_made_up = false;
};

/// Runs batches on one session. Session and padding outlive it.
class BatchRunner {
 public:
  BatchRunner(engine::Session& session, const Padding& padding);

  /// Runs all requests as one batch, reports its timing to `on_batch` (may be empty), then calls the sinks.
  /// Requests must be of one group. If the batch fails, each request runs alone, so that one with bad data
  /// fails alone; `on_alone` (may be empty) is told before each of them. No exception may leave it.
  void run(std::span<Request> batch, const base::Clock& clock,
           const std::function<void(const Timing&)>& on_batch,
           const std::function<void(std::span<const Request>)>& on_alone = {});
  void warm_up(const WarmUp& shapes);
  /// Scratch memory of the session: that of its largest program so far.
  int64_t scratch_bytes() const { return session_.arena_bytes(); }

 private:
  bool may_share(std::span<const Request> batch, int64_t rows);
  void refuse_unfit(std::span<const Request> batch, int64_t rows);
  tensor::Dims padded_dims(const tensor::Tensor& input, size_t index, int64_t rows) const;
  std::vector<tensor::Tensor> gather(std::span<const Request> batch, int64_t rows) const;
  std::vector<tensor::Tensor> compute(std::span<Request> batch, int64_t rows, int64_t padded,
                                      const base::Clock& clock);
  /// First row of each request, and the rows that hold them all.
  static std::vector<int64_t> places_of(std::span<const Request> batch, int64_t& rows);
  void fill_rows(tensor::Tensor& all, size_t input, const std::vector<bool>& is_taken) const;
  engine::Session& session_;
  const Padding& padding_;
};

}  // namespace trireme::sched
