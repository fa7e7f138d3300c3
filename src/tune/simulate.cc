// The simulation: arrivals, the policy's decisions, and batches that end after their measured time.
#include "tune/simulate.h"

#include <algorithm>
#include <queue>
#include <span>

#include "base/error.h"
#include "base/rng.h"
#include "sched/policy/row_prices.h"
#include "sched/policy/usual_load.h"

namespace trireme::tune {
namespace {

constexpr int64_t kNever = INT64_MAX;

/// Where a waiting request came from.
struct Origin {
  int64_t sent_ns = 0;
  size_t group = 0;
  bool is_counted = false;
};

struct Instance {
  int64_t free_ns = kNever;  ///< when its batch ends; kNever: idle
  std::vector<Origin> batch;
  size_t group = 0;
  int64_t padded_rows = 0, took_ns = 0;
  bool is_idle() const { return free_ns == kNever; }
};

class Simulation {
 public:
  Simulation(const Batching& batching, const ServiceTimes& times, const Traffic& traffic,
             const std::vector<LatencyGoal>& goals)
      : batching_(batching),
        times_(times),
        traffic_(traffic),
        half_overhead_ns_(static_cast<int64_t>(times.overhead_ns / 2)),
        instances_(static_cast<size_t>(batching.limits.instances)),
        prices_(batching.row_buckets, batching.limits.max_rows) {
    double sum = 0;
    for (double share : traffic.group_shares) cumulative_.push_back(sum += share);
    base::check(sum > 0 && (traffic.rate > 0) != (traffic.clients > 0), "traffic needs a rate or clients");
    for (const LatencyGoal& goal : goals) {
      const double most = (1 - goal.quantile) * static_cast<double>(traffic.requests);
      allowed_.push_back({goal.bound_ns, static_cast<int64_t>(most)});
    }
  }

  Simulated run() {
    start();
    while (answered_ + result_.refused < traffic_.requests && !result_.is_cut_short) {
      now_ns_ = next_event();
      if (now_ns_ == kNever) break;
      finish_batches();
      take_arrivals();
      start_batches();
    }
    const auto window_ns = static_cast<double>(std::max<int64_t>(1, now_ns_ - counted_from_ns_));
    result_.throughput = static_cast<double>(answered_in_window_) * 1e9 / window_ns;
    result_.mean_batch = batches_ == 0 ? 0 : static_cast<double>(batched_) / static_cast<double>(batches_);
    result_.service_ns = batched_ == 0 ? 0 : service_ns_ / static_cast<double>(batched_);
    result_.busy = busy_ns_ / (static_cast<double>(std::max<int64_t>(1, now_ns_)) *
                               static_cast<double>(instances_.size()));
    return std::move(result_);
  }

 private:
  using Arrival = std::pair<int64_t, int64_t>;  // when it is sent; number, for ties

  /// A late answer uses up what a goal allows.
  struct Allowance {
    int64_t bound_ns = 0;
    int64_t left = 0;
  };

  void start() {
    if (traffic_.clients == 0) return send_at(next_gap());
    // Spread over a millisecond, as connections open one after another.
    for (int64_t c = 0; c < traffic_.clients; ++c) send_at(c * 1'000'000 / traffic_.clients);
  }
  int64_t next_gap() { return static_cast<int64_t>(arrivals_random_.exponential(1e9 / traffic_.rate)); }
  void send_at(int64_t at_ns) { arrivals_.emplace(at_ns, sent_++); }

  int64_t next_event() const {
    int64_t next = arrivals_.empty() ? kNever : arrivals_.top().first + half_overhead_ns_;
    bool any_idle = false;
    for (const Instance& i : instances_) {
      next = std::min(next, i.free_ns);
      any_idle = any_idle || i.is_idle();
    }
    return any_idle ? std::min(next, wake_ns_) : next;
  }

  void finish_batches() {
    for (Instance& i : instances_) {
      if (i.free_ns > now_ns_) continue;
      running_ -= i.batch.size();
      if (prices_rows()) prices_.observe(i.group, i.padded_rows, i.took_ns, now_ns_);
      for (const Origin& origin : i.batch) answer(origin);
      i.batch.clear();
      i.free_ns = kNever;
    }
  }

  void answer(const Origin& origin) {
    const int64_t at_ns = now_ns_ + half_overhead_ns_;
    if (traffic_.clients > 0) send_at(at_ns);
    if (counted_from_ns_ > 0) ++answered_in_window_;
    if (!origin.is_counted) return;
    ++answered_;
    const int64_t latency_ns = at_ns - origin.sent_ns;
    result_.latency.record(latency_ns);
    for (Allowance& a : allowed_) {
      if (latency_ns > a.bound_ns && --a.left < 0) result_.is_cut_short = true;
    }
  }

  void take_arrivals() {
    while (!arrivals_.empty() && arrivals_.top().first + half_overhead_ns_ <= now_ns_) {
      const auto [sent_ns, number] = arrivals_.top();
      arrivals_.pop();
      if (traffic_.clients == 0) send_at(sent_ns + next_gap());
      const bool is_counted = number >= traffic_.warm_up && number < traffic_.warm_up + traffic_.requests;
      if (number == traffic_.warm_up) counted_from_ns_ = std::max<int64_t>(1, now_ns_);
      if (waiting() >= batching_.max_queue) {
        result_.refused += is_counted ? 1 : 0;
        if (traffic_.clients > 0) send_at(now_ns_ + 1'000'000);
        for (Allowance& a : allowed_) {
          if (is_counted && --a.left < 0) result_.is_cut_short = true;
        }
        continue;
      }
      const size_t group = draw_group();
      queue_.push_back({.rows = traffic_.rows, .enqueued_ns = now_ns_, .group = group});
      origins_.push_back({sent_ns, group, is_counted});
      usual_.arrived(waiting() + running_);
    }
  }

  size_t draw_group() {
    if (cumulative_.size() == 1) return 0;
    const double at = groups_random_.uniform() * cumulative_.back();
    return static_cast<size_t>(std::upper_bound(cumulative_.begin(), cumulative_.end() - 1, at) -
                               cumulative_.begin());
  }

  size_t waiting() const { return queue_.size() - first_; }
  bool prices_rows() const { return !batching_.runs_whole && batching_.limits.max_rows > 1; }

  /// The beginning of the queue that decides: all wait in order of arrival and none is due, so once the first
  /// one's group is sure to fill a batch, who comes later changes nothing.
  std::span<const sched::Waiting> deciding() const {
    int64_t rows = 0;
    size_t end = first_;
    while (end < queue_.size() && rows <= batching_.limits.max_rows) {
      if (queue_[end].group == queue_[first_].group) rows += queue_[end].rows;
      ++end;
    }
    return {queue_.data() + first_, end - first_};
  }

  void start_batches() {
    wake_ns_ = kNever;
    for (Instance& instance : instances_) {
      if (waiting() == 0) return;
      if (!instance.is_idle()) continue;
      sched::BatchLimits limits = batching_.limits;
      if (prices_rows()) limits.worth = prices_.worth_at(now_ns_, batching_.is_window_adaptive);
      if (batching_.is_window_adaptive && usual_.is_complete(waiting() + running_)) limits.window_ns = 0;
      const sched::Decision decision = sched::decide(deciding(), now_ns_, limits);
      if (decision.take.empty()) {
        wake_ns_ = decision.wake_ns;
        return;
      }
      start_batch(instance, decision.take);
    }
  }

  /// Takes these of the deciding ones out; the others of them move up to the rest.
  void remove(const std::vector<size_t>& taken) {
    const size_t reach = *std::max_element(taken.begin(), taken.end()) + 1;
    std::vector<bool> leaves(reach, false);
    for (size_t i : taken) leaves[i] = true;
    size_t to = first_ + reach;
    for (size_t i = reach; i-- > 0;) {
      if (leaves[i]) continue;
      --to;
      queue_[to] = queue_[first_ + i];
      origins_[to] = origins_[first_ + i];
    }
    first_ = to;
    if (first_ < 4096 || 2 * first_ < queue_.size()) return;
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(first_));
    origins_.erase(origins_.begin(), origins_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }

  void start_batch(Instance& instance, const std::vector<size_t>& taken) {
    int64_t rows = 0;
    for (size_t i : taken) {
      rows += queue_[first_ + i].rows;
      instance.batch.push_back(origins_[first_ + i]);
    }
    instance.group = origins_[first_ + taken[0]].group;
    remove(taken);
    running_ += taken.size();
    int busy = 1;
    for (const Instance& i : instances_) busy += i.is_idle() ? 0 : 1;
    instance.padded_rows = sched::bucket_of(batching_.row_buckets, rows);
    double took_ns = times_.usual_ns(instance.group, instance.padded_rows, busy);
    if (!times_.ratios.empty()) took_ns *= times_.ratios[service_random_.below(times_.ratios.size())];
    instance.took_ns = std::max<int64_t>(1, static_cast<int64_t>(took_ns));
    instance.free_ns = now_ns_ + instance.took_ns;
    busy_ns_ += took_ns;
    service_ns_ += took_ns * static_cast<double>(taken.size());
    ++batches_;
    batched_ += static_cast<int64_t>(taken.size());
  }

  const Batching& batching_;
  const ServiceTimes& times_;
  const Traffic& traffic_;
  const int64_t half_overhead_ns_;
  std::vector<double> cumulative_;
  std::vector<Allowance> allowed_;
  // A stream for each purpose: what one configuration draws does not shift another's arrivals.
  base::Rng arrivals_random_{traffic_.seed, 1}, groups_random_{traffic_.seed, 2},
      service_random_{traffic_.seed, 3};
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::vector<sched::Waiting> queue_;  ///< from first_ on; in front lies what has left
  std::vector<Origin> origins_;        ///< of the same requests
  size_t first_ = 0;
  std::vector<Instance> instances_;
  sched::UsualLoad usual_;
  sched::RowPrices prices_;  ///< learnt as the server learns them
  size_t running_ = 0;
  int64_t now_ns_ = 0, wake_ns_ = kNever, sent_ = 0, counted_from_ns_ = 0;
  int64_t answered_ = 0, answered_in_window_ = 0, batches_ = 0, batched_ = 0;
  double busy_ns_ = 0, service_ns_ = 0;
  Simulated result_;
};

}  // namespace

bool Simulated::meets(const std::vector<LatencyGoal>& goals) const {
  if (is_cut_short || refused > 0 || latency.count() == 0) return false;
  return std::all_of(goals.begin(), goals.end(), [this](const LatencyGoal& goal) {
    return latency.quantile(goal.quantile) <= goal.bound_ns;
  });
}

Simulated simulate(const Batching& batching, const ServiceTimes& times, const Traffic& traffic,
                   const std::vector<LatencyGoal>& goals) {
  return Simulation(batching, times, traffic, goals).run();
}

}  // namespace trireme::tune
