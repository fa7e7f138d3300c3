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
  return std::find(padding.padded_inputs.begin(), padding.padded_inputs.end(), input) !=
         padding.padded_inputs.end();
}

/// Extent of dimension `d` >= 1 after padding.
int64_t extent_of(const Tensor& t, size_t input, size_t d, const Padding& padding) {
  const int64_t extent = t.dims()[d];
  return d == 1 && is_padded(padding, input) ? bucket_of(padding.length_buckets, extent) : extent;
}

/// Copies the rows of `from` [rows, length, ...] to row `at` of `to`, whose dimension 1 may be longer.
void copy_rows(const Tensor& from, Tensor& to, int64_t at) {
  const int64_t rows = from.dims()[0];
  if (rows == 0 || to.bytes() == 0) return;
  const int64_t from_row = from.bytes() / rows, to_row = to.bytes() / to.dims()[0];
  std::byte* target = to.mutable_raw() + at * to_row;
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(target + r * to_row, from.raw() + r * from_row, static_cast<size_t>(from_row));
    std::memset(target + r * to_row + from_row, 0, static_cast<size_t>(to_row - from_row));
  }
}

void fail(Request& request, const base::Error& error) {
  request.sink({.outputs = {}, .error = error, .ending = Ending::failed, .timing = request.timing});
}

/// Gives each request its own rows; views, not copies.
void split(std::vector<Request>& batch, const std::vector<Tensor>& outputs) {
  int64_t at = 0;
  for (Request& r : batch) {
    std::vector<Tensor> own;
    for (const Tensor& t : outputs) own.push_back(t.rows(at, at + r.rows));
    at += r.rows;
    r.sink({.outputs = std::move(own), .error = std::nullopt, .timing = r.timing});
  }
}

}  // namespace

uint64_t group_key(const std::vector<Tensor>& inputs, const Padding& padding) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  const auto mix = [&hash](uint64_t v) { hash = (hash ^ v) * 0x100000001b3ull; };
  for (size_t i = 0; i < inputs.size(); ++i) {
    mix(static_cast<uint64_t>(inputs[i].dtype()));
    mix(inputs[i].rank());
    if (inputs[i].rank() == 0) mix(tensor::content_hash(inputs[i]));
    for (size_t d = 1; d < inputs[i].rank(); ++d)
      mix(static_cast<uint64_t>(extent_of(inputs[i], i, d, padding)));
  }
  return hash;
}

bool same_group(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const Padding& padding) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].dtype() != b[i].dtype() || a[i].rank() != b[i].rank()) return false;
    if (a[i].rank() == 0 && !a[i].same_as(b[i])) return false;
    for (size_t d = 1; d < a[i].rank(); ++d) {
      if (extent_of(a[i], i, d, padding) != extent_of(b[i], i, d, padding)) return false;
    }
  }
  return true;
}

BatchRunner::BatchRunner(engine::Session& session, const Padding& padding)
    : session_(session), padding_(padding) {}

Dims BatchRunner::padded_dims(const Tensor& input, size_t index, int64_t rows) const {
  Dims dims = input.dims();
  if (dims.empty() || !padding_.is_batched) return dims;
  for (size_t d = 1; d < dims.size(); ++d) dims[d] = extent_of(input, index, d, padding_);
  dims[0] = rows;
  return dims;
}

std::vector<Tensor> BatchRunner::gather(const std::vector<Request>& batch, int64_t rows) const {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < batch[0].inputs.size(); ++i) {
    const Tensor& first = batch[0].inputs[i];
    const Dims dims = padded_dims(first, i, rows);
    if (dims.empty() || (batch.size() == 1 && dims == first.dims())) {
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

std::vector<Tensor> BatchRunner::compute(std::vector<Request>& batch, int64_t rows, int64_t padded,
                                         const base::Clock& clock) {
  const std::vector<Tensor> inputs = gather(batch, padded);
  const int64_t start = clock.now_ns();
  std::vector<Tensor> outputs = session_.run(inputs);
  const int64_t end = clock.now_ns();
  for (Request& r : batch) {
    r.timing.computed_ns = start;
    r.timing.finished_ns = end;
    r.timing.batch_rows = rows;
    r.timing.padded_rows = padded;
    r.timing.own_rows = r.rows;
  }
  for (const Tensor& t : outputs) {
    base::check(!padding_.is_batched || (t.rank() > 0 && t.dims()[0] == padded), "an output of shape ",
                tensor::to_string(t.dims()), " does not follow the batch of ", padded,
                " rows; serve this model with max_batch_size 0");
  }
  return outputs;
}

void BatchRunner::run_singly(std::vector<Request>& batch, const base::Clock& clock,
                             const std::function<void(const Timing&)>& on_batch) {
  for (Request& r : batch) {
    std::vector<Request> one;
    one.push_back(std::move(r));
    run(one, clock, on_batch);
  }
}

void BatchRunner::run(std::vector<Request>& batch, const base::Clock& clock,
                      const std::function<void(const Timing&)>& on_batch) {
  int64_t rows = 0;
  for (const Request& r : batch) rows += r.rows;
  const int64_t padded = padding_.is_batched ? bucket_of(padding_.row_buckets, rows) : rows;
  std::vector<Tensor> outputs;
  std::optional<base::Error> error;
  try {
    outputs = compute(batch, rows, padded, clock);
  } catch (const base::Error& e) {
    error = e;
  } catch (const std::bad_alloc&) {
    error = base::Error(base::ErrorCode::exhausted, "out of memory");
  } catch (const std::exception& e) {
    error = base::Error(base::ErrorCode::internal, e.what());
  }
  if (error) return batch.size() == 1 ? fail(batch[0], *error) : run_singly(batch, clock, on_batch);
  if (on_batch) on_batch(batch[0].timing);
  if (batch.size() == 1 && padded == rows) {
    batch[0].sink({.outputs = std::move(outputs), .error = std::nullopt, .timing = batch[0].timing});
  } else {
    split(batch, outputs);
  }
}

void BatchRunner::warm_up(const WarmUp& shapes) {
  std::vector<Request> batch(1);
  batch[0].inputs = shapes.example;
  for (int64_t wanted : shapes.rows) {
    const int64_t rows = padding_.is_batched ? bucket_of(padding_.row_buckets, wanted) : 1;
    if (shapes.is_run) {
      session_.run(gather(batch, rows));
      continue;
    }
    std::vector<Dims> dims;
    for (size_t i = 0; i < shapes.example.size(); ++i)
      dims.push_back(padded_dims(shapes.example[i], i, rows));
    session_.prepare(dims);
  }
}

}  // namespace trireme::sched
