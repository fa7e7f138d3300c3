// Which waiting requests form the next batch, or how long to wait: a pure function of queue and time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace trireme::sched {

/// What the policy sees of a waiting request.
struct Waiting {
  int64_t rows = 1;
  int64_t enqueued_ns = 0;
  int64_t deadline_ns = 0;  ///< it must have started by then; 0: none
  uint32_t priority = 0;    ///< lower first
  uint64_t group = 0;  ///< only requests of one group (equal inner shapes, equal length bucket) share a batch
  int64_t finish_ns = 0;   ///< its answer is of use until then; 0: always
  bool runs_late = false;  ///< past deadline_ns it goes behind all others of its priority instead of away
  bool is_trial = false;   ///< runs though it seems hopeless: what seems so may have changed
  uint32_t tenant = 0;
  double weight = 1;    ///< of the tenant
  double cost_ns = 1;   ///< what it adds to a batch, for the tenants' shares
  double fair_tag = 0;  ///< lower first within a priority: FairShare; equal where nobody shares
};

/// When an answer is due; where the request does not say, so long after it came that it is never overtaken
/// for ever.
int64_t due_of(const Waiting& waiting);

/// Predicted time of a batch of so many rows of a group; 0: unknown.
using PredictNs = std::function<int64_t(uint64_t group, int64_t rows)>;

/// How many of the waiting rows to run at once; and whether more of them would be cheaper, so that waiting
/// for them may gain something.
struct BatchWorth {
  int64_t rows = 0;
  bool gains_by_waiting = true;
};
using WorthOf = std::function<BatchWorth(uint64_t group, int64_t rows)>;

struct BatchLimits {
  int64_t max_rows = 1;
  int64_t window_ns = 0;                ///< longest wait of the oldest request for a fuller batch
  std::vector<int64_t> preferred = {};  ///< row counts worth running at once, ascending
  int instances = 1;                    ///< that share the queue
  WorthOf worth = {};  ///< ends a batch earlier, where there are no preferred counts; empty: none
  bool others_end_window =
      false;  ///< one of another group that waits ends the first one's wait, as in Triton
};

/// Either `take` (indices into the queue, in batch order) is not empty, or nothing is to be done before
/// `wake_ns`.
struct Decision {
  std::vector<size_t> expired;   ///< waited too long: refuse them
  std::vector<size_t> hopeless;  ///< could not be done in time even alone and now: refuse them
  std::vector<size_t> take;
  int64_t wake_ns = INT64_MAX;
};

/// Decides for one idle instance. `queue` is in order of arrival. Requests go by priority, then by the share
/// that their tenant has had, then by when their answer is due; where none is due, by arrival. The first
/// gives the group; others of it join in order while they fit. While these wait for more, another group's
/// full batch goes, so that no instance is idle beside work. Of preferred counts the largest that is reached
/// ends the batch; where none can be met exactly any more, it ends before it passes the largest. A batch that
/// would be late for its most urgent member is made smaller; where that would make others late, so that some
/// must be given up in any case, the batch with the most rows in time per second goes, and what it leaves
/// behind ends as hopeless, before it has cost anything.
Decision decide(std::span<const Waiting> queue, int64_t now_ns, const BatchLimits& limits,
                const PredictNs& predict = {});

/// Whether a request that arrives now can be done in time behind what is due before it, with an eighth of the
/// wait in hand, and without making anybody of its tenant late who waits already. An instance is free from
/// `free_ns` on.
bool admits(std::span<const Waiting> queue, const Waiting& request, int64_t free_ns,
            const BatchLimits& limits, const PredictNs& predict);

/// The smallest bucket that holds `value`; `value` itself where none does or the list is empty.
int64_t bucket_of(std::span<const int64_t> buckets, int64_t value);

}  // namespace trireme::sched
