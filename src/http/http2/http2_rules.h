// What an HTTP/2 session counts of its client, so that no client costs more than its bytes are worth: pings,
// settings, streams that fail, fields.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/memory/memory_budget.h"

namespace trireme::http {

/// gRPC's rule: pings that come too soon after one another, with no answer of ours between them, are counted.
class PingRule {
 public:
  /// A ping, where so much time should lie between two. False: there were `most` early ones before it.
  bool allows(int64_t now_ns, int64_t interval_ns, int most) {
    const bool is_early = now_ns < last_ns_ + interval_ns;
    last_ns_ = now_ns;
    return !is_early || ++early_ <= most;
  }
  /// What we send earns the client its next ping.
  void earn() {
    last_ns_ = kLongAgo;
    early_ = 0;
  }

 private:
  static constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min() / 2;
  int64_t last_ns_ = kLongAgo;
  int early_ = 0;
};

/// Events that may come in a burst, but for long no faster than they are forgiven.
class RateRule {
 public:
  /// So many events now. False: there were more than `most_at_once` and what `per_second` forgives.
  bool allows(int64_t now_ns, uint64_t events, uint64_t most_at_once, uint64_t per_second) {
    const double passed_s = static_cast<double>(std::max<int64_t>(now_ns - last_ns_, 0)) * 1e-9;
    last_ns_ = std::max(now_ns, last_ns_);
    events_ =
        std::max(events_ - passed_s * static_cast<double>(per_second), 0.0) + static_cast<double>(events);
    return events_ <= static_cast<double>(most_at_once);
  }

 private:
  int64_t last_ns_ = 0;
  double events_ = 0;
};

/// Memory of the fields of a session's open streams, leased in steps: most requests take none.
class FieldAccount {
 public:
  /// False: there is no memory for them.
  bool keep(size_t bytes) {
    const size_t all = bytes_ + bytes;
    const bool is_short = all > static_cast<size_t>(lease_.bytes()) + kStepBytes;
    if (is_short && !lease_.try_resize(static_cast<int64_t>(all / kStepBytes * kStepBytes))) return false;
    bytes_ = all;
    return true;
  }
  void forget(size_t bytes) {
    bytes_ -= bytes;
    if (static_cast<size_t>(lease_.bytes()) >= bytes_ + 2 * kStepBytes)
      lease_.resize(static_cast<int64_t>(bytes_ / kStepBytes * kStepBytes));
  }

 private:
  static constexpr size_t kStepBytes = size_t{16} << 10;
  size_t bytes_ = 0;
  base::MemoryLease lease_{base::MemoryUse::bodies, 0};
};

}  // namespace trireme::http
