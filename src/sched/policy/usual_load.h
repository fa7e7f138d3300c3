// How many requests are usually in flight, as arriving ones see it: what an adaptive window waits for.
#pragma once

#include <cstddef>

namespace trireme::sched {

/// Not for several threads at once.
class UsualLoad {
 public:
  /// A request arrived; with it so many wait or run.
  void arrived(size_t in_flight) {
    // An eighth of the new value: a dozen arrivals decide, one straggler does not.
    usual_ += (static_cast<double>(in_flight) - usual_) / 8;
  }
  /// Who is usually here is here: waiting longer would cost latency and bring nobody.
  bool is_complete(size_t in_flight) const { return static_cast<double>(in_flight) >= usual_ - 0.5; }

 private:
  double usual_ = 0;
};

}  // namespace trireme::sched
