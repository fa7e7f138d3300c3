// The dynamic loss scale of fp16 training: a small state machine, saved with the run.
#pragma once

#include <cstdint>

#include "base/text/json.h"
#include "base/text/options.h"

namespace trireme::train {

/// The defaults are PyTorch's rule. Megatron's: initial 2^32, window 1000, hysteresis 2, minimum 1.
struct LossScaleOptions {
  bool dynamic = true;
  double initial = 65536;
  double growth = 2;
  double backoff = 0.5;
  int64_t window = 2000;
  int64_t hysteresis = 1;
  double minimum = 1;
  void fields(base::OptionList& f);
};

/// A step multiplies its loss by scale() and its gradients by 1 / scale(); update() then says how it went.
/// A step that found inf or NaN is skipped: weights, schedule and step counter stay, the data moves on.
class LossScaler {
 public:
  explicit LossScaler(const LossScaleOptions& options);

  double scale() const { return scale_; }
  /// Found: good = 0, hysteresis -= 1, and from 0 on scale = max(scale * backoff, minimum). Otherwise good +=
  /// 1 and at `window` scale *= growth, good = 0, hysteresis as at the start.
  void update(bool found_inf);
  /// The scale cannot fall further, and the last step was not finite: the run is beyond rescue by scaling.
  bool is_exhausted() const { return exhausted_; }

  base::Json state() const;
  /// Throws invalid_argument for what state() did not write.
  void restore(const base::Json& state);

 private:
  LossScaleOptions options_;
  double scale_;
  int64_t good_ = 0;
  int64_t hysteresis_;
  bool exhausted_ = false;
};

}  // namespace trireme::train
