// Joins the rows of several requests into one model run, and splits the results among the requests.
#include "sched/batch.h"

#include <algorithm>
#include <cstring>

#include "sched/policy/batch_policy.h"
#include "sched/current_error.h"

namespace trireme::sched {
namespace {

using tensor::Dims;
using tensor::Tensor;

const PaddedSide* side_of(const Padding& padding, size_t input, size_t d) {
  for (const PaddedSide& side : padding.padded_sides) {
    if (side.tensor == input && side.dim == d) return &side;
  }
  return nullptr;
}

bool is_padded(const Padding& padding, size_t input, size_t d) {
  const auto& zeros = padding.padded_inputs;
  return (d == 1 && std::find(zeros.begin(), zeros.end(), input) != zeros.end()) ||
         side_of(padding, input, d) != nullptr;
}

/// Extent of dimension `d` >= 1 after padding.
int64_t extent_of(const Tensor& t, size_t input, size_t d, const Padding& padding) {
  const int64_t extent = t.dims()[d];
  return is_padded(padding, input, d) ? bucket_of(padding.length_buckets, extent) : extent;
}

/// Size in bytes of a stretch of elements that is contiguous from dimension `d` on.
int64_t stretch_bytes(const Tensor& t, size_t d) {
  int64_t bytes = t.elements() == 0 ? 0 : t.bytes() / t.elements();
  for (size_t i = d; i < t.rank(); ++i) bytes *= t.dims()[i];
  return bytes;
}

/// The first dimension in which the two differ; the rank if there is none.
size_t differing_dim(const Tensor& a, const Tensor& b) {
  size_t d = 1;
  while (d < a.rank() && a.dims()[d] == b.dims()[d]) ++d;
  return d;
}

void fill(std::byte* to, int64_t bytes, tensor::DType type, double value) {
  if (value == 0) return static_cast<void>(std::memset(to, 0, static_cast<size_t>(bytes)));
  tensor::visit_dtype(type, [&]<class T>(T) {
    T element;
    if constexpr (std::is_arithmetic_v<T>) {
      element = static_cast<T>(value);
    } else {
      element = T(static_cast<float>(value));
    }
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(sizeof(T)))
      std::memcpy(to + at, &element, sizeof(T));
  });
}

/// Copies the rows of `from` [rows, ..., length, ...] to row `at` of `to`, which may be longer in one
/// dimension; the rest of that dimension is filled with `value`.
void copy_rows(const Tensor& from, Tensor& to, int64_t at, double value) {
  const int64_t rows = from.dims()[0];
  if (rows == 0 || to.bytes() == 0) return;
  const size_t d = differing_dim(from, to);
  std::byte* target = to.mutable_raw() + at * stretch_bytes(to, 1);
  if (d == from.rank())
    return static_cast<void>(std::memcpy(target, from.raw(), static_cast<size_t>(from.bytes())));
  const int64_t from_bytes = stretch_bytes(from, d), to_bytes = stretch_bytes(to, d);
  const int64_t stretches =
      from_bytes == 0 ? rows * stretch_bytes(to, 1) / to_bytes : from.bytes() / from_bytes;
  for (int64_t i = 0; i < stretches; ++i) {
    std::memcpy(target + i * to_bytes, from.raw() + i * from_bytes, static_cast<size_t>(from_bytes));
    if (to_bytes > from_bytes)
      fill(target + i * to_bytes + from_bytes, to_bytes - from_bytes, to.dtype(), value);
  }
}

/// The first `length` elements along dimension `d`.
Tensor cropped(const Tensor& t, size_t d, int64_t length) {
  if (t.dims()[d] <= length) return t;
  Dims dims = t.dims();
  dims[d] = length;
  Tensor out = Tensor::empty(t.dtype(), dims);
  if (out.bytes() == 0) return out;
  const int64_t from_bytes = stretch_bytes(t, d), to_bytes = stretch_bytes(out, d);
  for (int64_t i = 0; i < out.bytes() / to_bytes; ++i)
    std::memcpy(out.mutable_raw() + i * to_bytes, t.raw() + i * from_bytes, static_cast<size_t>(to_bytes));
  return out;
}

void fail(Request& request, base::Error error) {
  request.sink(
      {.outputs = {}, .error = std::move(error), .ending = Ending::failed, .timing = request.timing});
}

/// Gives each request its own rows: views, or copies where padding must be cropped.
void split(std::span<Request> batch, const std::vector<int64_t>& places, const std::vector<Tensor>& outputs,
           const Padding& padding) {
  for (size_t i = 0; i < batch.size(); ++i) {
    Request& r = batch[i];
    const int64_t at = places[i];
    std::vector<Tensor> own;
    try {
      for (const Tensor& t : outputs) own.push_back(t.rows(at, at + r.rows));
      for (const PaddedSide& side : padding.cropped_outputs) {
        Tensor& t = own.at(side.tensor);
        t = cropped(t, side.dim, r.inputs.at(side.input).dims()[side.input_dim]);
      }
    } catch (...) {
      fail(r, current_error());
      continue;
    }
    r.sink({.outputs = std::move(own), .error = std::nullopt, .timing = r.timing});
  }
}

/// Reports the timing; a lack of memory for it must not cost the batch its answers.
void tell(const std::function<void(const Timing&)>& on_batch, const Timing& timing) {
  try {
    if (on_batch) on_batch(timing);
  } catch (const std::bad_alloc&) {
    return;
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

std::vector<int64_t> BatchRunner::places_of(std::span<const Request> batch, int64_t& rows) {
  std::vector<int64_t> places;
  rows = 0;
  for (const Request& r : batch) {
    places.push_back(r.row >= 0 ? r.row : rows);
    rows = std::max(rows, places.back() + r.rows);
  }
  return places;
}

void BatchRunner::fill_rows(Tensor& all, size_t input, const std::vector<bool>& is_taken) const {
  const int64_t row = is_taken.empty() ? 0 : all.bytes() / static_cast<int64_t>(is_taken.size());
  const Tensor* idle = input < padding_.idle_row.size() ? &padding_.idle_row[input] : nullptr;
  for (size_t r = 0; r < is_taken.size(); ++r) {
    if (is_taken[r]) continue;
    std::byte* to = all.mutable_raw() + static_cast<int64_t>(r) * row;
    if (idle != nullptr && idle->bytes() == row) {
      std::memcpy(to, idle->raw(), static_cast<size_t>(row));
    } else {
      std::memset(to, 0, static_cast<size_t>(row));
    }
  }
}

/// Whether a batch may hold more than one request's rows; with is_shown, only if proven for its extents.
bool BatchRunner::may_share(std::span<const Request> batch, int64_t rows) {
  if (!padding_.is_shown || (batch.size() == 1 && rows == batch[0].rows)) return true;
  std::vector<Dims> shapes;
  for (size_t i = 0; i < batch[0].inputs.size(); ++i)
    shapes.push_back(padded_dims(batch[0].inputs[i], i, rows));
  return session_.keeps_rows_apart(shapes);
}

/// Compiles the program before large inputs are gathered: a program that does not fit is refused before any
/// memory is padded for it.
void BatchRunner::refuse_unfit(std::span<const Request> batch, int64_t rows) {
  constexpr int64_t kMuchBytes = int64_t{1} << 20;
  std::vector<Dims> shapes;
  int64_t gathered = 0;
  for (size_t i = 0; i < batch[0].inputs.size(); ++i) {
    const Tensor& first = batch[0].inputs[i];
    shapes.push_back(padded_dims(first, i, rows));
    const int64_t bytes = tensor::bytes_of(first.dtype(), tensor::element_count(shapes.back()));
    if (bytes > INT64_MAX - gathered) gathered = INT64_MAX - bytes;
    gathered += shapes.back() == first.dims() ? 0 : bytes;
  }
  if (gathered > kMuchBytes) session_.prepare(shapes);
}

std::vector<Tensor> BatchRunner::gather(std::span<const Request> batch, int64_t rows) const {
  int64_t needed = 0;
  const std::vector<int64_t> places = places_of(batch, needed);
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < batch[0].inputs.size(); ++i) {
    const Tensor& first = batch[0].inputs[i];
    const Dims dims = padded_dims(first, i, rows);
    if (dims.empty() || (batch.size() == 1 && dims == first.dims())) {
      inputs.push_back(first);  // nothing to gather: the request's own memory is used
      continue;
    }
    Tensor all = Tensor::empty(first.dtype(), dims);
    double value = 0;
    for (const PaddedSide& side : padding_.padded_sides) {
      if (side.tensor == i) value = side.value;
    }
    std::vector<bool> is_taken(static_cast<size_t>(rows), false);
    for (size_t k = 0; k < batch.size(); ++k) {
      copy_rows(batch[k].inputs[i], all, places[k], value);
      std::fill_n(is_taken.begin() + places[k], batch[k].rows, true);
    }
    fill_rows(all, i, is_taken);
    inputs.push_back(std::move(all));
  }
  return inputs;
}

std::vector<Tensor> BatchRunner::compute(std::span<Request> batch, int64_t rows, int64_t padded,
                                         const base::Clock& clock) {
  refuse_unfit(batch, padded);
  const std::vector<Tensor> inputs = gather(batch, padded);
  int64_t elements = 0, real = 0;
  for (const Tensor& t : inputs) elements += t.elements();
  for (const Request& r : batch) {
    for (const Tensor& t : r.inputs) real += t.rank() == 0 ? 0 : t.elements();
  }
  for (const Tensor& t : inputs) real += t.rank() == 0 ? t.elements() : 0;
  const int64_t start = clock.now_ns();
  std::vector<Tensor> outputs = session_.run(inputs);
  const int64_t end = clock.now_ns();
  for (Request& r : batch) {
    r.timing.computed_ns = start;
    r.timing.finished_ns = end;
    r.timing.batch_rows = rows;
    r.timing.padded_rows = padded;
    r.timing.own_rows = r.rows;
    r.timing.elements = elements;
    r.timing.padded = elements - real;
    r.timing.depends_on_data = !session_.last_was_static();
  }
  for (const Tensor& t : outputs) {
    if (!padding_.is_batched || (t.rank() > 0 && t.dims()[0] == padded)) continue;
    base::fail(base::ErrorCode::internal, "an output of shape ", tensor::to_string(t.dims()),
               " does not follow the batch of ", padded, " rows; serve this model with max_batch_size 0");
  }
  return outputs;
}

void BatchRunner::run(std::span<Request> batch, const base::Clock& clock,
                      const std::function<void(const Timing&)>& on_batch,
                      const std::function<void(std::span<const Request>)>& on_alone) {
  int64_t rows = 0, needed = 0, padded = 0;
  for (const Request& r : batch) rows += r.rows;
  std::vector<int64_t> places;
  std::vector<Tensor> outputs;
  std::optional<base::Error> error;
  bool shares = true;
  try {
    places = places_of(batch, needed);
    padded = padding_.is_batched ? bucket_of(padding_.row_buckets, needed) : rows;
    shares = may_share(batch, padded);
    if (!shares && batch.size() == 1) padded = needed;
    if (shares || batch.size() == 1) outputs = compute(batch, rows, padded, clock);
  } catch (...) {
    error = current_error();
  }
  if (error && batch.size() == 1) return fail(batch[0], std::move(*error));
  if (error || (!shares && batch.size() > 1)) {
    for (size_t i = 0; i < batch.size(); ++i) {
      if (on_alone) on_alone(batch.subspan(i, 1));
      run(batch.subspan(i, 1), clock, on_batch);
    }
    return;
  }
  tell(on_batch, batch[0].timing);
  if (batch.size() == 1 && padded == rows && places[0] == 0 && padding_.cropped_outputs.empty()) {
    batch[0].sink({.outputs = std::move(outputs), .error = std::nullopt, .timing = batch[0].timing});
  } else {
    split(batch, places, outputs, padding_);
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
