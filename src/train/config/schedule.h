// The learning rate as a function of the samples or tokens seen, so that a change of the batch does not alter
// it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/text/options.h"

namespace trireme::train {

enum class ScheduleKind { constant, linear, cosine, step, inverse_root, wsd };
enum class ScheduleUnit { samples, tokens };
enum class DecayForm { linear, cosine, exponential, one_minus_sqrt };
enum class BatchScaling { none, linear, sqrt };

/// Lengths are in `unit`.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 1e-3;   ///< peak, for a batch of base_batch
  double min_lr = 0;  ///< floor of every decay
  ScheduleUnit unit = ScheduleUnit::samples;
  int64_t warmup = 0;
  double warmup_fraction = 0;
  double warmup_from = -1;  ///< -1: the first step has its share of the peak
  int64_t total = 0;        ///< 0: the whole run
  int64_t decay = 0;
  DecayForm decay_form = DecayForm::linear;
  std::vector<int64_t> drop_at;
  double drop_factor = 0.1;
  BatchScaling batch_scaling = BatchScaling::none;
  int64_t base_batch = 256;
  void fields(base::OptionList& f);
};

/// What the schedule must know of the run.
struct ScheduleRun {
  int64_t total = 0;         ///< samples or tokens of the whole run
  int64_t global_batch = 1;  ///< samples a step, for batch_scaling
};

/// A pure function; its only state is the count that its caller keeps: units of *executed* updates (a skipped
/// update does not advance it).
class Schedule {
 public:
  /// Throws invalid_argument for lengths that do not fit into the run.
  Schedule(const ScheduleOptions& options, const ScheduleRun& run);

  /// Learning rate of the step that takes `units` after `seen`. Warm-up reaches the peak with the step that
  /// ends at `warmup` (or, from warmup_from, with the step that begins there); decay x = (seen - warmup) /
  /// (total - warmup) is clamped to [0, 1].
  double at(int64_t seen, int64_t units) const;
  /// Whether its lengths follow from the run's, because `total` is not stated.
  bool is_as_long_as_the_run() const;
  /// One line for the record of the run.
  std::string describe() const;

 private:
  double decayed(double seen) const;
  ScheduleOptions options_;
  double peak_ = 0;    // after batch scaling
  double min_lr_ = 0;  // likewise
  double warmup_ = 0, total_ = 0;
};

}  // namespace trireme::train
