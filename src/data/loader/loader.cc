// The loader: decides which samples form which batch, runs worker threads that make the batches, and delivers
// them in order.
#include "data/loader/loader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/threads/bounded_queue.h"
#include "base/error.h"
#include "data/dataset/permutation.h"

namespace trireme::data {

using base::require;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

const Tensor& Batch::tensor(std::string_view name) const {
  for (const Value& v : values) {
    if (v.name == name && v.tensor.defined()) return v.tensor;
  }
  base::fail(base::ErrorCode::not_found, "batch has no tensor '", name, "'");
}

const std::vector<std::string>& Batch::texts(std::string_view name) const {
  for (const Value& v : values) {
    if (v.name == name && !v.tensor.defined()) return v.strings;
  }
  base::fail(base::ErrorCode::not_found, "batch has no texts '", name, "'");
}

/// Maps batch numbers of this rank to places in the global order. Number 0 is the first batch of epoch 0.
class BatchPlan {
 public:
  BatchPlan(const LoaderOptions& o, int64_t size)
      : rows_(o.batch), size_(size), rank_(o.rank), epochs_(o.epochs), interleave_(o.interleave) {
    require(o.batch > 0 && o.world > 0 && o.rank >= 0 && o.rank < o.world && o.epochs >= 0,
            "loader options do not fit: batch ", o.batch, ", rank ", o.rank, " of ", o.world);
    slice_ = o.batch * o.world;
    global_ = o.global_batch > 0 ? o.global_batch : slice_;
    require(global_ % slice_ == 0, "global batch is not a multiple of batch times ranks: ", global_, ", ",
            o.batch, " x ", o.world);
    const bool pad = o.last == LastBatch::pad;
    steps_ = (size + (pad ? global_ - 1 : 0)) / global_;
    require(steps_ > 0, "data set is smaller than one step: ", size, " samples, global batch ", global_,
            "; pad the last batch or make it smaller");
  }

  int64_t steps() const { return steps_; }
  int64_t global_batch() const { return global_; }
  int64_t batches() const { return steps_ * (global_ / slice_); }
  bool is_end(int64_t number) const { return epochs_ > 0 && number >= epochs_ * batches(); }
  int64_t epoch(int64_t number) const { return number / batches(); }

  /// Place of row 0 in the epoch's order.
  int64_t first(int64_t number) const {
    const int64_t per_step = global_ / slice_;
    const int64_t in_epoch = number % batches();
    if (interleave_) return in_epoch * slice_ + rank_ * rows_;
    return in_epoch / per_step * global_ + rank_ * (per_step * rows_) + in_epoch % per_step * rows_;
  }
  Position position(int64_t number) const { return {epoch(number), number % batches() * slice_}; }
  int64_t valid_rows(int64_t number) const { return std::clamp<int64_t>(size_ - first(number), 0, rows_); }
  int64_t number_of(Position p) const {
    require(p.epoch >= 0 && p.consumed >= 0, "position is negative: epoch ", p.epoch, ", samples ",
            p.consumed);
    if (p.consumed == batches() * slice_) return (p.epoch + 1) * batches();
    require(p.consumed < batches() * slice_ && p.consumed % slice_ == 0, "no batch starts at sample ",
            p.consumed, " of an epoch of ", batches() * slice_, " in slices of ", slice_);
    return p.epoch * batches() + p.consumed / slice_;
  }

 private:
  int64_t rows_, size_, rank_, epochs_;
  bool interleave_;
  int64_t slice_ = 0;   // rows that all ranks take together
  int64_t global_ = 0;  // samples per step
  int64_t steps_ = 0;   // steps per epoch
};

namespace {

/// The element type in which a batch stores samples of a type.
DType batch_dtype(DType type) {
  return type == DType::u8 || tensor::is_float(type) ? DType::f32 : DType::i64;
}

/// Converts the elements of `from` to type `to`, and writes them to a row.
void copy_row(const Tensor& from, DType to, std::byte* row) {
  if (from.dtype() == to) {
    std::memcpy(row, from.raw(), static_cast<size_t>(from.bytes()));
    return;
  }
  tensor::visit_dtype(from.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<const T> values = from.data<T>();
    const auto convert = [&](auto* out) {
      for (size_t i = 0; i < values.size(); ++i) {
        out[i] = static_cast<std::remove_reference_t<decltype(*out)>>(values[i]);
      }
    };
    if (to == DType::f32) {
      convert(reinterpret_cast<float*>(row));
    } else {
      convert(reinterpret_cast<int64_t*>(row));
    }
  });
}

}  // namespace

/// Makes batches by number; const, shared by all workers.
class BatchMaker {
 public:
  BatchMaker(DatasetPtr dataset, LoaderOptions options, Transform transform)
      : dataset_(std::move(dataset)),
        options_(std::move(options)),
        transform_(std::move(transform)),
        plan_(options_, dataset_->size()) {
    learn_fields(sample_at(0, 0));
  }

  const BatchPlan& plan() const { return plan_; }
  const LoaderOptions& options() const { return options_; }
  const Dataset& dataset() const { return *dataset_; }
  const std::vector<Field>& fields() const { return fields_; }

  /// Throws base::Error that names the sample. Once `stop` is set, returns early; the batch is then unused.
  Batch make(int64_t number, const std::atomic<bool>& stop) const {
    Batch batch{.valid = Tensor::zeros(DType::f32, {options_.batch})};
    batch.first = plan_.first(number);
    batch.begin = plan_.position(number);
    batch.end = plan_.position(number + 1);
    batch.valid_rows = plan_.valid_rows(number);
    std::fill_n(batch.valid.mutable_data<float>().begin(), batch.valid_rows, 1.0f);
    for (const Field& f : fields_) batch.values.push_back(empty_column(f, batch.valid_rows));
    for (int64_t row = 0; row < batch.valid_rows && !stop; ++row) {
      const Sample sample = sample_at(plan_.epoch(number), batch.first + row);
      put_row(sample, row, batch, batch.begin.epoch);
    }
    return batch;
  }

 private:
  int64_t index_at(int64_t epoch, int64_t place) const {
    if (!options_.shuffle) return place;
    return Permutation(options_.seed, static_cast<uint64_t>(epoch), dataset_->size())(place);
  }

  Sample sample_at(int64_t epoch, int64_t place) const {
    const int64_t index = index_at(epoch, place);
    try {
      Sample sample = dataset_->read(index);
      if (transform_) transform_(sample, {options_.seed, epoch, place});
      return sample;
    } catch (const base::Error& e) {
      throw e.with(base::concat("sample ", index, " (", dataset_->name_of(index), ")"));
    }
  }

  void learn_fields(const Sample& sample) {
    const std::vector<std::string>& wanted = options_.fields;
    for (const std::string& name : wanted) {
      if (sample.find(name) == nullptr) unknown_field(name, sample);
    }
    for (const Value& v : sample.values) {
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), v.name) == wanted.end()) continue;
      const Field* declared = dataset_->info().find(v.name);
      Field f{.name = v.name, .is_target = declared != nullptr && declared->is_target};
      if (v.tensor.defined()) {
        f.dtype = batch_dtype(v.tensor.dtype());
        f.shape = tensor::Shape::of(v.tensor.dims());
      } else {
        f.kind = declared != nullptr ? declared->kind : FieldKind::bytes;
      }
      fields_.push_back(std::move(f));
    }
    require(!fields_.empty(), "samples have no fields to batch");
  }

  [[noreturn]] void unknown_field(const std::string& name, const Sample& sample) const {
    std::string there;
    for (const Value& v : sample.values) there += (there.empty() ? "" : ", ") + v.name;
    base::fail_invalid("data set has no field '", name, "'; it has ", there);
  }

  /// A column whose rows from `valid_rows` on are final: zeros, the ignore index in integer targets, or "".
  Value empty_column(const Field& f, int64_t valid_rows) const {
    Value column{f.name};
    if (f.kind != FieldKind::tensor) {
      column.strings.resize(static_cast<size_t>(options_.batch));
      return column;
    }
    Dims dims = f.shape.to_dims();
    dims.insert(dims.begin(), options_.batch);
    column.tensor = Tensor::empty(f.dtype, dims);
    if (valid_rows == options_.batch) return column;
    Tensor padding = column.tensor.rows(valid_rows, options_.batch);
    if (f.is_target && f.dtype == DType::i64) {
      std::fill_n(padding.mutable_data<int64_t>().begin(), padding.elements(), options_.ignore_index);
    } else {
      std::memset(padding.mutable_raw(), 0, static_cast<size_t>(padding.bytes()));
    }
    return column;
  }

  void put_row(const Sample& sample, int64_t row, Batch& batch, int64_t epoch) const {
    for (size_t i = 0; i < fields_.size(); ++i) {
      const Field& f = fields_[i];
      const Value* value = sample.find(f.name);
      Value& column = batch.values[i];
      try {
        require(value != nullptr, "field is missing: '", f.name, "'");
        if (f.kind != FieldKind::tensor) {
          require(value->strings.size() == 1, "field is not one text: '", f.name, "'");
          column.strings[static_cast<size_t>(row)] = value->strings[0];
          continue;
        }
        require(value->tensor.defined(), "field is not a tensor: '", f.name, "'");
        require(f.shape == tensor::Shape::of(value->tensor.dims()),
                "samples of one batch differ in shape (resize or crop them): '", f.name, "' ",
                tensor::to_string(value->tensor.dims()), " after ", f.shape.to_string());
        require(batch_dtype(value->tensor.dtype()) == f.dtype, "samples of one batch differ in type: '",
                f.name, "'");
        const auto row_bytes = static_cast<size_t>(column.tensor.bytes() / options_.batch);
        copy_row(value->tensor, f.dtype, column.tensor.mutable_raw() + static_cast<size_t>(row) * row_bytes);
      } catch (const base::Error& e) {
        const int64_t index = index_at(epoch, batch.first + row);
        throw e.with(base::concat("sample ", index, " (", dataset_->name_of(index), ")"));
      }
    }
  }

  DatasetPtr dataset_;
  LoaderOptions options_;
  Transform transform_;
  BatchPlan plan_;
  std::vector<Field> fields_;
};

/// A batch, or the error that prevented it.
struct MadeBatch {
  std::optional<Batch> batch;
  std::optional<base::Error> error;
};

namespace {

MadeBatch make_guarded(const BatchMaker& maker, int64_t number, const std::atomic<bool>& stop) {
  try {
    return {maker.make(number, stop), {}};
  } catch (const base::Error& e) {
    return {{}, e};
  } catch (const std::bad_alloc&) {
    return {{}, base::Error(base::ErrorCode::exhausted, "out of memory while loading a batch")};
  } catch (const std::exception& e) {
    return {{}, base::Error(base::ErrorCode::internal, base::concat("loading a batch: ", e.what()))};
  }
}

}  // namespace

/// Worker w of W makes the batches with the numbers start + w, start + w + W, … and puts them into its own
/// queue, so taking from the queues in turn gives the batches in order.
class Loader::Impl {
 public:
  Impl(DatasetPtr dataset, LoaderOptions options, Transform transform, base::Clock& clock)
      : maker_(std::move(dataset), std::move(options), std::move(transform)), clock_(clock) {
    require(maker_.options().workers >= 0 && maker_.options().workers <= kMaxWorkers &&
                maker_.options().prefetch >= 0 && maker_.options().prefetch <= kMaxPrefetch,
            "loader options do not fit: workers ", maker_.options().workers, ", prefetch ",
            maker_.options().prefetch);
  }
  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::optional<Batch> next() {
    if (failed_) throw base::Error(*failed_);
    if (maker_.plan().is_end(number_)) return std::nullopt;
    const int64_t start_ns = clock_.now_ns();
    MadeBatch made = take();
    if (made.error) {
      failed_ = made.error;
      stop();
      throw base::Error(*failed_);
    }
    made.batch->wait_ns = clock_.now_ns() - start_ns;
    ++number_;
    return std::move(made.batch);
  }

  void seek(Position position) {
    const int64_t number = maker_.plan().number_of(position);
    stop();
    number_ = number;
    failed_.reset();
  }

  Position position() const { return maker_.plan().position(number_); }
  const BatchMaker& maker() const { return maker_; }

 private:
  static constexpr int kMaxWorkers = 1024;
  static constexpr int kMaxPrefetch = 1 << 16;
  using Queue = base::BoundedQueue<MadeBatch>;

  MadeBatch take() {
    if (maker_.options().workers == 0) return make_guarded(maker_, number_, stopping_);
    if (workers_.empty()) start();
    const auto turn = static_cast<size_t>(number_ - started_at_) % queues_.size();
    std::optional<MadeBatch> made = queues_[turn]->pop();
    base::check(made.has_value(), "loader worker left without a word");
    return std::move(*made);
  }

  void start() {
    const int workers = maker_.options().workers;
    // The batch that a worker is making comes on top of those in its queue.
    const int room = std::max(1, (maker_.options().prefetch + workers - 1) / workers);
    started_at_ = number_;
    stopping_ = false;
    for (int w = 0; w < workers; ++w) queues_.push_back(std::make_unique<Queue>(static_cast<size_t>(room)));
    for (int w = 0; w < workers; ++w) {
      workers_.emplace_back(
          [this, w, workers] { work(*queues_[static_cast<size_t>(w)], started_at_ + w, workers); });
    }
  }

  void work(Queue& queue, int64_t number, int64_t stride) const {
    for (; !stopping_ && !maker_.plan().is_end(number); number += stride) {
      MadeBatch made = make_guarded(maker_, number, stopping_);
      const bool failed = made.error.has_value();
      if (queue.push(std::move(made)) != base::PushResult::ok || failed) return;
    }
  }

  void stop() {
    stopping_ = true;
    for (const auto& queue : queues_) queue->close();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    queues_.clear();
    stopping_ = false;
  }

  BatchMaker maker_;
  base::Clock& clock_;
  int64_t number_ = 0;      // of the batch that next() gives
  int64_t started_at_ = 0;  // number_ when the workers began
  std::atomic<bool> stopping_ = false;
  std::optional<base::Error> failed_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::vector<std::thread> workers_;
};

Loader::Loader(DatasetPtr dataset, LoaderOptions options, Transform transform, base::Clock& clock)
    : impl_(std::make_unique<Impl>(std::move(dataset), std::move(options), std::move(transform), clock)) {}
Loader::~Loader() = default;

std::optional<Batch> Loader::next() { return impl_->next(); }
Position Loader::position() const { return impl_->position(); }
void Loader::seek(Position position) { impl_->seek(position); }

int64_t Loader::batches_per_epoch() const { return impl_->maker().plan().batches(); }
int64_t Loader::steps_per_epoch() const { return impl_->maker().plan().steps(); }
int64_t Loader::samples_per_epoch() const {
  const BatchPlan& plan = impl_->maker().plan();
  return std::min(plan.steps() * plan.global_batch(), dataset().size());
}
const std::vector<Field>& Loader::fields() const { return impl_->maker().fields(); }
const Dataset& Loader::dataset() const { return impl_->maker().dataset(); }
uint64_t Loader::fingerprint() const { return data::fingerprint(dataset()); }

}  // namespace trireme::data
