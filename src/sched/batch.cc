// Puts the rows of several requests into one model run and takes the results apart again.
#include "sched/batch.h"

#include <algorithm>
#include <cstring>

#include "sched/batch_policy.h"

namespace trireme::sched {
namespace {

using tensor::Dims;
using tensor::Tensor;

bool is_padded(const Padding& padding, size_t input) {
  return std::find(padding.padded_inputs.begin(), padding.padded_inputs.end(), input) != padding.padded_inputs.end();
}

/// Copies the rows of `from` [rows, length, ...] to row `at` of `to`, whose dimension 1 may be longer.
void copy_rows(const Tensor& from, Tensor& to, int64_t at) {
  const int64_t rows = from.rank() == 0 ? 1 : from.dims()[0];
  if (rows == 0) return;
  const int64_t from_row = from.bytes() / rows, to_row = to.bytes() / to.dims()[0];
  std::byte* target = to.mutable_raw() + at * to_row;
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(target + r * to_row, from.raw() + r * from_row, static_cast<size_t>(from_row));
    std::memset(target + r * to_row + from_row, 0, static_cast<size_t>(to_row - from_row));
  }
}

void finish(Request& request, std::vector<Tensor> outputs) {
  request.sink({.outputs = std::move(outputs), .error = std::nullopt, .timing = request.timing});
}

void fail_all(std::vector<Request>& batch, const base::Error& error) {
  for (Request& r : batch) r.sink({.outputs = {}, .error = error, .timing = r.timing});
}

}  // namespace

uint64_t group_key(const std::vector<Tensor>& inputs, const Padding& padding) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  const auto mix = [&hash](uint64_t v) { hash = (hash ^ v) * 0x100000001b3ull; };
  for (size_t i = 0; i < inputs.size(); ++i) {
    mix(static_cast<uint64_t>(inputs[i].dtype()));
    mix(inputs[i].rank());
    for (size_t d = 1; d < inputs[i].rank(); ++d) {
      const int64_t extent = inputs[i].dims()[d];
      const bool pad = d == 1 && is_padded(padding, i);
      mix(static_cast<uint64_t>(pad ? bucket_of(padding.length_buckets, extent) : extent));
    }
  }
  return hash;
}

BatchRunner::BatchRunner(engine::Session& session, Padding padding)
    : session_(session), padding_(std::move(padding)) {}

std::vector<Tensor> BatchRunner::gather(const std::vector<Request>& batch, int64_t rows) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < batch[0].inputs.size(); ++i) {
    const Tensor& first = batch[0].inputs[i];
    Dims dims = first.dims();
    if (dims.empty()) {  // a scalar parameter is the same for all
      inputs.push_back(first);
      continue;
    }
    dims[0] = rows;
    if (is_padded(padding_, i) && dims.size() > 1) dims[1] = bucket_of(padding_.length_buckets, dims[1]);
    if (batch.size() == 1 && dims == first.dims()) {
      inputs.push_back(first);  // nothing to gather: the request's own memory is the batch
      continue;
    }
    Tensor all = Tensor::empty(first.dtype(), dims);
    int64_t at = 0;
    for (const Request& r : batch) {
      copy_rows(r.inputs[i], all, at);
      at += r.rows;
    }
    const int64_t row = rows == 0 ? 0 : all.bytes() / rows;
    std::memset(all.mutable_raw() + at * row, 0, static_cast<size_t>((rows - at) * row));
    inputs.push_back(std::move(all));
  }
  return inputs;
}

void BatchRunner::run(std::vector<Request>& batch, const base::Clock& clock) {
  int64_t rows = 0;
  for (const Request& r : batch) rows += r.rows;
  const int64_t padded = bucket_of(padding_.row_buckets, rows);
  std::vector<Tensor> outputs;
  try {
    const std::vector<Tensor> inputs = gather(batch, padded);
    const int64_t start = clock.now_ns();
    outputs = session_.run(inputs);
    const int64_t end = clock.now_ns();
    for (Request& r : batch) {
      r.timing.computed_ns = start;
      r.timing.finished_ns = end;
      r.timing.batch_rows = rows;
      r.timing.padded_rows = padded;
    }
    for (const Tensor& t : outputs) {
      const bool whole = batch.size() == 1 && padded == rows;
      base::check(whole || (t.rank() > 0 && t.dims()[0] == padded), "an output of shape ", tensor::to_string(t.dims()),
                  " does not follow the batch of ", padded, " rows; serve this model with max_batch_size 0");
    }
  } catch (const base::Error& e) {
    fail_all(batch, e);
    return;
  } catch (const std::exception& e) {
    fail_all(batch, base::Error(base::ErrorCode::internal, e.what()));
    return;
  }
  if (batch.size() == 1 && padded == rows) return finish(batch[0], std::move(outputs));
  int64_t at = 0;
  for (Request& r : batch) {
    std::vector<Tensor> own;
    for (const Tensor& t : outputs) own.push_back(t.rows(at, at + r.rows));
    at += r.rows;
    finish(r, std::move(own));
  }
}

void BatchRunner::warm_up(const std::vector<Tensor>& example, int64_t rows) {
  std::vector<Request> batch(1);
  batch[0].inputs = example;
  batch[0].rows = 1;
  std::vector<Tensor> inputs = gather(batch, bucket_of(padding_.row_buckets, rows));
  session_.run(inputs);
}

}  // namespace trireme::sched
