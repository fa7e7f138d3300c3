// Measures a scheduler's steps as they run, of which two may overlap.
#pragma once

#include <algorithm>
#include <deque>

#include "base/clock.h"
#include "sched/text/step_prices.h"

namespace trireme::sched {

/// One owner thread.
class StepMeter {
 public:
  /// The clock outlives it. Null: nothing is measured.
  explicit StepMeter(const base::Clock* clock) : clock_(clock) {}

  int64_t now_ns() const { return clock_ == nullptr ? 0 : clock_->now_ns(); }
  void launched(int64_t at_ns) { launched_ns_.push_back(at_ns); }
  /// The oldest step under way is done; it ran so many tokens. Of two that overlap the second one's time
  /// begins where the first is done.
  void collected(int64_t tokens) {
    const int64_t began_ns = std::max(launched_ns_.front(), last_end_ns_);
    launched_ns_.pop_front();
    last_end_ns_ = now_ns();
    if (clock_ != nullptr) prices_.observe(tokens, last_end_ns_ - began_ns);
  }
  /// Null: nobody measures.
  const StepPrices* prices() const { return clock_ == nullptr ? nullptr : &prices_; }

 private:
  const base::Clock* clock_;
  StepPrices prices_;
  std::deque<int64_t> launched_ns_;  // of the steps under way
  int64_t last_end_ns_ = 0;
};

}  // namespace trireme::sched
