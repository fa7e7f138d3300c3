// Which waiting requests form the next batch, or how long to wait: a pure function of queue and time.
// time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::sched {

/// What the policy sees of a waiting request.
struct Waiting {
  int64_t rows = 1;
  int64_t enqueued_ns = 0;
  int64_t deadline_ns = 0;  ///< 0: none
  uint32_t priority = 0;    ///< lower first
  uint64_t group = 0;  ///< only requests of one group (equal inner shapes, equal length bucket) share a batch
};

struct BatchLimits {
  int64_t max_rows = 1;
  int64_t window_ns = 0;                ///< longest wait of the oldest request for a fuller batch
  std::vector<int64_t> preferred = {};  ///< row counts worth running at once, ascending
};

/// Either `take` (indices into the queue, in batch order) is not empty, or nothing is to be done before
/// `wake_ns`.
struct Decision {
  std::vector<size_t> expired;  ///< past their deadline: refuse them
  std::vector<size_t> take;
  int64_t wake_ns = INT64_MAX;
};

/// Decides for one idle instance. `queue` is in order of arrival. `compute_ns` predicts how long a batch
/// takes (0 if unknown): a batch goes early enough for the tightest deadline in it. The head is the oldest
/// request of the best priority; others of its group join in order while they fit.
Decision decide(std::span<const Waiting> queue, int64_t now_ns, const BatchLimits& limits,
                int64_t compute_ns = 0);

/// The smallest bucket that holds `value`; `value` itself where none does or the list is empty.
int64_t bucket_of(std::span<const int64_t> buckets, int64_t value);

}  // namespace trireme::sched
