// Batches for training: samples in a shuffled order, decoded and changed by worker threads, waiting in
// bounded queues.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "data/dataset/dataset.h"

namespace trireme::data {

/// What a change of a sample may depend on: never on the worker or on the samples before.
struct SampleKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t index = 0;  ///< in the epoch's global order
};

/// Changes a sample as it is loaded (see augment.h). Called from several threads at once.
using Transform = std::function<void(Sample&, const SampleKey&)>;

/// Where reading stands: samples that all ranks together took from the epoch's order.
struct Position {
  int64_t epoch = 0;
  int64_t consumed = 0;
  bool operator==(const Position&) const = default;
};

/// A last batch that the epoch does not fill: left out, or filled up with rows that are not valid.
enum class LastBatch : uint8_t { drop, pad };

struct LoaderOptions {
  int64_t batch = 32;        ///< rows of a batch, on this rank
  int64_t global_batch = 0;  ///< samples of a step over all ranks: a multiple of batch * world; 0: just that
  int64_t rank = 0, world = 1;
  bool interleave = false;  ///< ranks take a step's batches in turn; else each takes one contiguous run
  bool shuffle = true;
  uint64_t seed = 0;
  LastBatch last = LastBatch::drop;
  int64_t epochs = 0;                    ///< 0: without end
  int workers = 2;                       ///< 0: the caller's thread does the work
  int prefetch = 4;                      ///< finished batches that may wait, over all workers
  std::vector<std::string> fields = {};  ///< to batch; empty: all
  int64_t ignore_index = -100;           ///< in integer targets of rows that are not valid
};

struct Batch {
  /// Tensors [batch, ...]: f32 for u8 (unscaled) and floats, i64 for other integers and booleans. Texts: one
  /// string a row.
  std::vector<Value> values;
  tensor::Tensor valid;    ///< f32 [batch]: 0 for the rows that fill up an epoch's last batch, else 1
  int64_t valid_rows = 0;  ///< sum of `valid`
  int64_t first = 0;       ///< place of row 0 in the epoch's global order
  Position begin, end;     ///< position before and after this batch
  int64_t wait_ns = 0;     ///< how long next() waited for it

  const tensor::Tensor& tensor(std::string_view name) const;
  const std::vector<std::string>& texts(std::string_view name) const;
};

/// Reads a data set batch by batch. Order: position g of epoch e is sample Permutation(seed, e)(g). Step k
/// takes g in [k * B, (k + 1) * B), B = global_batch; rank r owns the r-th contiguous part of it and yields
/// it in batches, or with `interleave` every world-th batch of the step. Order and content depend neither on
/// workers nor on prefetch nor on where reading started.
class Loader {
 public:
  /// Reads one sample to learn the types. Throws invalid_argument for options that do not fit each other or
  /// a data set smaller than one step.
  Loader(DatasetPtr dataset, LoaderOptions options, Transform transform, base::Clock& clock);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch, or nothing after the last epoch. An error of a worker is thrown here, with the sample's
  /// name, in its turn; every further call throws it again until seek().
  std::optional<Batch> next();

  /// Where next() goes on; give it to seek() to resume.
  Position position() const;
  /// Goes to a position in O(1). Throws invalid_argument where no batch starts.
  void seek(Position position);

  int64_t batches_per_epoch() const;  ///< of this rank
  int64_t steps_per_epoch() const;
  int64_t samples_per_epoch() const;  ///< over all ranks, without those left out
  /// The batched fields: shapes of one sample after the transform, types as in the batch.
  const std::vector<Field>& fields() const;
  const Dataset& dataset() const;
  uint64_t fingerprint() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::data
