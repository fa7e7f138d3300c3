// Decides which waiting requests form the next batch, or how long to wait for more.
#include "sched/policy/batch_policy.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

namespace trireme::sched {
namespace {

constexpr int64_t kNever = INT64_MAX;
/// At most this many other groups are examined for a full batch.
constexpr size_t kMostOtherGroups = 8;
/// A request without a due time counts as due this long after arrival: it cannot be overtaken for ever.
constexpr int64_t kPatienceNs = 30'000'000'000;

class Forming {
 public:
  Forming(std::span<const Waiting> queue, int64_t now_ns, const BatchLimits& limits, const PredictNs& predict)
      : queue_(queue), now_ns_(now_ns), limits_(limits), predict_(predict) {}

  Decision run() {
    sort_out();
    if (order_.empty()) return std::move(decision_);
    form(order_[0]);
    const int64_t go_ns = std::min(window_end(), latest_start());
    if (!is_ripe() && go_ns > now_ns_ && !form_other()) {
      decision_.wake_ns = std::min(decision_.wake_ns, go_ns);
      return std::move(decision_);
    }
    meet_due_times();
    decision_.take = std::move(batch_);
    return std::move(decision_);
  }

 private:
  int64_t cost(uint64_t group, int64_t rows) const { return predict_ ? predict_(group, rows) : 0; }
  const Waiting& head() const { return queue_[head_]; }
  bool is_ripe() const { return is_full_ || is_preferred_ || !gains_by_waiting_; }

  /// Separates requests to refuse, and sorts the others in the order in which they should run.
  void sort_out() {
    std::vector<bool> is_late(queue_.size(), false);
    for (size_t i = 0; i < queue_.size(); ++i) {
      const Waiting& w = queue_[i];
      const bool is_past = w.deadline_ns != 0 && w.deadline_ns <= now_ns_;
      if (is_past && !w.runs_late) {
        decision_.expired.push_back(i);
        continue;
      }
      const int64_t run_ns = w.is_trial ? 0 : cost(w.group, w.rows);
      if (w.finish_ns != 0 && now_ns_ + std::max<int64_t>(1, run_ns) > w.finish_ns) {
        decision_.hopeless.push_back(i);
        continue;
      }
      is_late[i] = is_past;
      if (w.deadline_ns != 0 && !is_past) decision_.wake_ns = std::min(decision_.wake_ns, w.deadline_ns);
      if (w.finish_ns != 0) decision_.wake_ns = std::min(decision_.wake_ns, w.finish_ns);
      order_.push_back(i);
    }
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      const auto key = [&](size_t i) {
        return std::tuple(queue_[i].priority, bool(is_late[i]), queue_[i].fair_tag, due_of(queue_[i]), i);
      };
      return key(a) < key(b);
    });
  }

  /// Forms the batch of the group of `head`.
  void form(size_t head) {
    head_ = head;
    batch_.clear();
    rows_ = 0;
    is_full_ = is_preferred_ = false;
    gains_by_waiting_ = true;
    gather();
    cut_to_preferred();
    cut_to_worth();
  }

  /// While the first request's batch waits for more, chooses a batch of another group of the same priority
  /// that need not wait; not if the first batch contains a request with a due time, which could become late.
  bool form_other() {
    const size_t first = head_;
    const auto is_due = [&](size_t i) { return queue_[i].finish_ns != 0; };
    if (std::any_of(batch_.begin(), batch_.end(), is_due)) return false;
    std::set<uint64_t> seen{head().group};
    for (size_t i : order_) {
      if (queue_[i].priority != queue_[first].priority) break;
      if (!seen.insert(queue_[i].group).second) continue;
      if (limits_.others_end_window) return true;
      if (seen.size() > kMostOtherGroups) break;
      form(i);
      if (is_full_ || is_preferred_) return true;
    }
    if (seen.size() > 1) form(first);
    return false;
  }

  /// Collects the requests of the first one's group that fit, in order.
  void gather() {
    for (size_t i : order_) {
      if (queue_[i].group != head().group) continue;
      if (!batch_.empty() && rows_ + queue_[i].rows > limits_.max_rows) {
        is_full_ = true;
        break;  // no overtaking: a later small request must not starve this one
      }
      batch_.push_back(i);
      rows_ += queue_[i].rows;
    }
    is_full_ = is_full_ || rows_ >= limits_.max_rows;
  }

  /// Ends the batch at the largest preferred size that it reaches exactly; if it reaches none, before it
  /// exceeds the largest.
  void cut_to_preferred() {
    if (limits_.preferred.empty()) return;
    const auto& sizes = limits_.preferred;
    const int64_t most = *std::max_element(sizes.begin(), sizes.end());
    int64_t rows = 0;
    size_t exact = 0, below = 0;
    for (size_t k = 0; k < batch_.size(); ++k) {
      rows += queue_[batch_[k]].rows;
      if (std::find(sizes.begin(), sizes.end(), rows) != sizes.end()) exact = k + 1;
      if (k == 0 || rows <= most) below = k + 1;
    }
    if (exact == 0 && (rows < most || window_end() <= now_ns_)) return;  // after a long wait, all go
    is_preferred_ = true;
    batch_.resize(exact > 0 ? exact : below);
    rows_ = 0;
    for (size_t i : batch_) rows_ += queue_[i].rows;
  }

  /// Leaves rows to the next batch if they would cost no more there.
  void cut_to_worth() {
    if (!limits_.worth || !limits_.preferred.empty()) return;
    const BatchWorth worth = limits_.worth(head().group, rows_);
    gains_by_waiting_ = worth.gains_by_waiting;
    size_t kept = 1;
    int64_t rows = head().rows;
    for (; kept < batch_.size() && rows + queue_[batch_[kept]].rows <= worth.rows; ++kept)
      rows += queue_[batch_[kept]].rows;
    batch_.resize(kept);
    rows_ = rows;
  }

  int64_t window_end() const {
    int64_t oldest_ns = kNever;
    for (size_t i : batch_) oldest_ns = std::min(oldest_ns, queue_[i].enqueued_ns);
    return oldest_ns + limits_.window_ns;
  }

  /// The latest start of the batch at which none of its requests is late.
  int64_t latest_start() const {
    const int64_t batch_ns = cost(head().group, rows_);
    int64_t latest = kNever;
    for (size_t i : batch_) {
      if (queue_[i].finish_ns != 0) latest = std::min(latest, queue_[i].finish_ns - batch_ns);
      if (queue_[i].deadline_ns > now_ns_) latest = std::min(latest, queue_[i].deadline_ns - 1);
    }
    return latest;
  }

  /// Shrinks the batch so that all due times are met, or else as many as possible.
  void meet_due_times() {
    const bool is_due =
        std::any_of(batch_.begin(), batch_.end(), [&](size_t i) { return queue_[i].finish_ns != 0; });
    if (!is_due || !predict_) return;
    const size_t prefix = longest_in_time();
    if (prefix == batch_.size() || leaves_rest_in_time(prefix)) return batch_.resize(prefix);
    take_best_rate();
  }

  /// The longest prefix of the batch that ends before any request in it is due; at least the first request.
  size_t longest_in_time() const {
    size_t best = 1;
    int64_t rows = 0, due_ns = kNever;
    for (size_t k = 0; k < batch_.size(); ++k) {
      const Waiting& w = queue_[batch_[k]];
      rows += w.rows;
      if (w.finish_ns != 0) due_ns = std::min(due_ns, w.finish_ns);
      if (due_ns == kNever || now_ns_ + cost(w.group, rows) <= due_ns) best = k + 1;
    }
    return best;
  }

  /// Whether all that wait are in time if the first `prefix` requests go now and full batches follow.
  bool leaves_rest_in_time(size_t prefix) const {
    std::vector<bool> is_gone(queue_.size(), false);
    int64_t rows = 0;
    for (size_t k = 0; k < prefix; ++k) {
      is_gone[batch_[k]] = true;
      rows += queue_[batch_[k]].rows;
    }
    int64_t at_ns = now_ns_ + cost(head().group, rows), filled = 0;
    for (size_t i : order_) {
      if (is_gone[i]) continue;
      const Waiting& w = queue_[i];
      const int64_t full_ns = cost(w.group, limits_.max_rows);
      const int64_t done_ns = at_ns + cost(w.group, std::min(limits_.max_rows, filled + w.rows));
      if (w.finish_ns != 0 && done_ns > w.finish_ns) return false;
      filled += w.rows;
      if (filled < limits_.max_rows) continue;
      at_ns += full_ns / std::max(1, limits_.instances);
      filled = 0;
    }
    return true;
  }

  /// Chooses the size with the most rows in time per second, from the requests that can still be in time.
  void take_best_rate() {
    std::vector<size_t> members, best;
    for (size_t i : order_) {
      if (queue_[i].group == head().group) members.push_back(i);
    }
    double best_rate = -1;
    for (int64_t size = 1;; size = std::min(size * 2, limits_.max_rows)) {
      std::vector<size_t> candidates;
      int64_t rows = 0;
      const int64_t batch_ns = std::max<int64_t>(1, cost(head().group, size));
      for (size_t i : members) {
        const Waiting& w = queue_[i];
        if (w.finish_ns != 0 && now_ns_ + batch_ns > w.finish_ns) continue;
        if (rows + w.rows > size) break;
        candidates.push_back(i);
        rows += w.rows;
      }
      const double rate = static_cast<double>(rows) / static_cast<double>(batch_ns);
      if (!candidates.empty() && rate > best_rate) {
        best_rate = rate;
        best = std::move(candidates);
      }
      if (size >= limits_.max_rows) break;
    }
    if (!best.empty()) batch_ = std::move(best);
  }

  std::span<const Waiting> queue_;
  const int64_t now_ns_;
  const BatchLimits& limits_;
  const PredictNs& predict_;
  Decision decision_;
  std::vector<size_t> order_, batch_;
  size_t head_ = 0;  ///< gives the batch its group
  int64_t rows_ = 0;
  bool is_full_ = false, is_preferred_ = false, gains_by_waiting_ = true;
};

}  // namespace

int64_t due_of(const Waiting& w) { return w.finish_ns != 0 ? w.finish_ns : w.enqueued_ns + kPatienceNs; }

int64_t bucket_of(std::span<const int64_t> buckets, int64_t value) {
  const auto at = std::lower_bound(buckets.begin(), buckets.end(), value);
  return at == buckets.end() ? value : *at;
}

Decision decide(std::span<const Waiting> queue, int64_t now_ns, const BatchLimits& limits,
                const PredictNs& predict) {
  return Forming(queue, now_ns, limits, predict).run();
}

bool admits(std::span<const Waiting> queue, const Waiting& request, int64_t free_ns,
            const BatchLimits& limits, const PredictNs& predict) {
  if (request.finish_ns == 0) return true;
  const int64_t full_ns = predict(request.group, limits.max_rows);
  const auto done_ns = [&](int64_t rows_ahead, const Waiting& w) {
    const int64_t batches = rows_ahead / limits.max_rows / std::max(1, limits.instances);
    const int64_t last = std::min(limits.max_rows, rows_ahead % limits.max_rows + w.rows);
    return free_ns + batches * full_ns + predict(w.group, last);
  };
  const auto key = [](const Waiting& w) { return std::tuple(w.priority, w.fair_tag, due_of(w)); };
  int64_t rows_ahead = 0;
  std::vector<const Waiting*> behind;
  for (const Waiting& w : queue) {
    if (key(w) <= key(request)) {
      rows_ahead += w.rows;
    } else if (w.finish_ns != 0 && w.tenant == request.tenant) {
      // A tenant that has used its share cannot keep this one from its own.
      behind.push_back(&w);
    }
  }
  // Urgent requests make batches less than full, and times vary: keeps a reserve of an eighth.
  const auto is_late = [&](const Waiting& w) {
    const int64_t end_ns = done_ns(rows_ahead, w);
    return end_ns + (end_ns - request.enqueued_ns) / 8 > w.finish_ns;
  };
  if (is_late(request)) return false;
  std::sort(behind.begin(), behind.end(), [&](const auto* a, const auto* b) { return key(*a) < key(*b); });
  rows_ahead += request.rows;
  for (const Waiting* w : behind) {
    if (is_late(*w)) return false;
    rows_ahead += w->rows;
  }
  return true;
}

}  // namespace trireme::sched
