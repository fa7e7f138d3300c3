// The pace that is asked of a client that sends or reads: some time to begin with, and more for each byte.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace trireme::http {

/// A limit of time as a pace counts it.
inline int64_t to_ns(std::chrono::milliseconds t) { return t.count() * 1'000'000; }

struct PaceLimits {
  int64_t grace_ns = 30'000'000'000;   ///< how far a client may fall behind
  uint64_t bytes_per_second = 16'384;  ///< at which it falls no further behind
};

/// A transfer that waits for its client. Each byte that moves buys time, up to the grace: who was quick
/// before is not allowed a longer pause. One look costs a few operations; any time may lie between two.
class Pace {
 public:
  /// Nothing waits for the client; the next transfer begins anew.
  void rest() { is_resting_ = true; }
  /// `moved_bytes` have moved so far, counted from anywhere. Time passes for the client only if it
  /// `is_awaited`: not while the transfer waits for something else.
  void look(const PaceLimits& limits, int64_t now_ns, uint64_t moved_bytes, bool is_awaited = true) {
    if (is_resting_) {
      is_resting_ = false;
      due_ns_ = now_ns + limits.grace_ns;
      moved_ns_ = now_ns;
    } else {
      const double bought_s =
          static_cast<double>(moved_bytes - moved_bytes_) / static_cast<double>(limits.bytes_per_second);
      // Compared as floating point numbers: a terabyte would buy more nanoseconds than an integer holds.
      const double gained_ns = bought_s * 1e9 + static_cast<double>(is_awaited ? 0 : now_ns - looked_ns_);
      const int64_t most_ns = now_ns + limits.grace_ns - due_ns_;
      due_ns_ += gained_ns < static_cast<double>(most_ns) ? static_cast<int64_t>(gained_ns) : most_ns;
      if (moved_bytes != moved_bytes_ || !is_awaited) moved_ns_ = now_ns;
    }
    moved_bytes_ = moved_bytes;
    looked_ns_ = now_ns;
  }
  /// When the client is too slow: it is further behind than the grace allows, or nothing has moved for
  /// `quiet_ns`. Never while nothing waits for it.
  int64_t due_ns(int64_t quiet_ns = kNever) const {
    if (is_resting_) return kNever;
    return quiet_ns == kNever ? due_ns_ : std::min(due_ns_, moved_ns_ + quiet_ns);
  }
  bool is_late(int64_t now_ns, int64_t quiet_ns = kNever) const { return now_ns >= due_ns(quiet_ns); }

  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

 private:
  bool is_resting_ = true;
  int64_t due_ns_ = 0, looked_ns_ = 0;
  int64_t moved_ns_ = 0;  ///< when bytes moved last, or began to wait
  uint64_t moved_bytes_ = 0;
};

}  // namespace trireme::http
