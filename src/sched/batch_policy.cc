// Which waiting requests form the next batch, or how long to wait for more.
#include "sched/batch_policy.h"

#include <algorithm>

namespace trireme::sched {
namespace {

bool is_expired(const Waiting& w, int64_t now_ns) { return w.deadline_ns != 0 && w.deadline_ns <= now_ns; }

/// The oldest live request of the best priority, or queue.size().
size_t head_of(std::span<const Waiting> queue, int64_t now_ns) {
  size_t head = queue.size();
  for (size_t i = 0; i < queue.size(); ++i) {
    if (is_expired(queue[i], now_ns)) continue;
    if (head == queue.size() || queue[i].priority < queue[head].priority) head = i;
  }
  return head;
}

struct Batch {
  std::vector<size_t> take;
  int64_t rows = 0;
  bool full = false;  ///< a request of the group did not fit any more
  int64_t oldest_ns = INT64_MAX;
  int64_t deadline_ns = INT64_MAX;
};

Batch gather(std::span<const Waiting> queue, size_t head, int64_t now_ns, const BatchLimits& limits) {
  std::vector<size_t> order;
  for (size_t i = 0; i < queue.size(); ++i) {
    if (queue[i].group == queue[head].group && !is_expired(queue[i], now_ns)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return queue[a].priority < queue[b].priority; });
  Batch batch;
  for (size_t i : order) {
    if (!batch.take.empty() && batch.rows + queue[i].rows > limits.max_rows) {
      batch.full = true;
      break;  // no overtaking: a later small one must not starve this one
    }
    batch.take.push_back(i);
    batch.rows += queue[i].rows;
    batch.oldest_ns = std::min(batch.oldest_ns, queue[i].enqueued_ns);
    if (queue[i].deadline_ns != 0) batch.deadline_ns = std::min(batch.deadline_ns, queue[i].deadline_ns);
  }
  batch.full = batch.full || batch.rows >= limits.max_rows;
  return batch;
}

}  // namespace

int64_t bucket_of(std::span<const int64_t> buckets, int64_t value) {
  const auto at = std::lower_bound(buckets.begin(), buckets.end(), value);
  return at == buckets.end() ? value : *at;
}

Decision decide(std::span<const Waiting> queue, int64_t now_ns, const BatchLimits& limits,
                int64_t compute_ns) {
  Decision decision;
  for (size_t i = 0; i < queue.size(); ++i) {
    if (is_expired(queue[i], now_ns)) {
      decision.expired.push_back(i);
    } else if (queue[i].deadline_ns != 0) {
      decision.wake_ns = std::min(decision.wake_ns, queue[i].deadline_ns);
    }
  }
  const size_t head = head_of(queue, now_ns);
  if (head == queue.size()) return decision;
  Batch batch = gather(queue, head, now_ns, limits);
  const bool preferred =
      std::find(limits.preferred.begin(), limits.preferred.end(), batch.rows) != limits.preferred.end();
  const int64_t window_end = batch.oldest_ns + limits.window_ns;
  const int64_t latest_start = batch.deadline_ns == INT64_MAX ? INT64_MAX : batch.deadline_ns - compute_ns;
  const int64_t go_ns = std::min(window_end, latest_start);
  if (batch.full || preferred || go_ns <= now_ns) {
    decision.take = std::move(batch.take);
  } else {
    decision.wake_ns = std::min(decision.wake_ns, go_ns);
  }
  return decision;
}

}  // namespace trireme::sched
