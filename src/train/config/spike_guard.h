// Watches loss and gradient norm for spikes: how far a value lies above its recent history, and what to do
// then.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/text/json.h"
#include "base/text/options.h"

namespace trireme::train {

enum class SpikePolicy { off, skip, rollback, stop };

struct SpikeOptions {
  SpikePolicy policy = SpikePolicy::off;
  int64_t window = 128;
  double z_loss = 6, z_norm = 6;
  int64_t patience = 3;
  double loss_keep = 0.98;
  void fields(base::OptionList& f);
};

/// The last `window` finite values of one quantity.
class SpikeWindow {
 public:
  explicit SpikeWindow(int64_t size) : size_(static_cast<size_t>(size)) {}
  /// mean + z * deviation of the window, or infinity while it is not full or z is 0.
  double limit(double z) const;
  /// (value - mean) / deviation of the window before `value`; 0 while it is not full.
  double z_score(double value) const;
  void push(double value);
  base::Json state() const;
  void restore(const base::Json& state);

 private:
  struct Moments {
    double mean, deviation;
  };
  Moments moments() const;
  size_t size_, next_ = 0;
  std::vector<double> values_;  // a ring once it is full; `next_` is the oldest
};

/// What the trainer should do after a step.
enum class SpikeAction { go_on, skipped, rollback, stop };

struct SpikeVerdict {
  SpikeAction action = SpikeAction::go_on;
  double z_loss = 0, z_norm = 0;
  std::string reason;  ///< for the log, empty without a spike
};

/// Limits go into the step (inputs norm_limit and loss_limit), so that a step above them changes nothing; the
/// guard then sees its values and asks for a rollback or a stop after `patience` spikes in a row.
/// Every policy but `off` skips the update of a spike. Not finite values are no spikes: they have a policy of
/// their own and stay out of the history.
class SpikeGuard {
 public:
  explicit SpikeGuard(const SpikeOptions& options);

  /// Limits for the coming step; infinity while the history is short or the policy is off.
  double loss_limit() const;
  double norm_limit() const;
  /// Takes the values of the step just run.
  SpikeVerdict observe(double loss, double grad_norm);
  /// Running mean of the finite losses, corrected for its start: sum of keep^i loss / sum of keep^i.
  double average_loss() const;

  base::Json state() const;
  void restore(const base::Json& state);

 private:
  SpikeOptions options_;
  SpikeWindow losses_, norms_;
  int64_t in_a_row_ = 0;
  double loss_sum_ = 0, loss_weight_ = 0;
};

}  // namespace trireme::train
