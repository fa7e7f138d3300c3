// Lets another thread end a run, and says why.
#pragma once

#include <atomic>
#include <cstdint>

namespace trireme::engine {

/// Why a run is to end before its results are there.
enum class StopReason : uint8_t {
  none,
  hangs,      ///< it took too long to be a run that works
  late,       ///< the deadlines of all its requests have passed
  abandoned,  ///< the clients of all its requests have left
  closing,    ///< the model is unloaded, or the server ends
  rounds,     ///< its loops have used up the time that a request's loops may take; does not end anything else
};

/// A run looks at it between its programs and before each round of a loop, never within a program.
class RunStop {
 public:
  void set(StopReason reason) { reason_.store(reason, std::memory_order_relaxed); }
  StopReason reason() const { return reason_.load(std::memory_order_relaxed); }

  /// Between programs: throws unavailable for every reason but `rounds`.
  void check() const {
    const StopReason now = reason();
    if (now != StopReason::none && now != StopReason::rounds) [[unlikely]]
      fail(now, 0);
  }
  /// Before a round of a loop: throws invalid_argument for `rounds`, unavailable for the others.
  void check_round(int64_t round) const {
    if (const StopReason now = reason(); now != StopReason::none) [[unlikely]]
      fail(now, round);
  }

 private:
  [[noreturn]] static void fail(StopReason reason, int64_t round);

  std::atomic<StopReason> reason_{StopReason::none};
};

}  // namespace trireme::engine
