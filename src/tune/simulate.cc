// The simulation: arrivals, the policy's decisions, and batches that end after their measured time.
#include "tune/simulate.h"

#include <algorithm>
#include <queue>
#include <span>

#include "base/error.h"
#include "base/rng.h"
#include "sched/batch_times.h"
#include "sched/policy/client_load.h"

namespace trireme::tune {
namespace {

constexpr int64_t kNever = INT64_MAX;

/// Where a waiting request came from.
struct Origin {
  int64_t sent_ns = 0;
  size_t group = 0;
  bool is_counted = false;
};

/// When clients send, and what: the same for every configuration that is simulated with one seed.
class Clients {
 public:
  explicit Clients(const Traffic& traffic) : traffic_(traffic) {
    double sum = 0;
    for (double share : traffic.group_shares) cumulative_.push_back(sum += share);
    base::check(sum > 0 && (traffic.rate > 0) != (traffic.clients > 0), "traffic needs a rate or clients");
    if (traffic.clients == 0) send_at(next_gap());
    // Spread over a millisecond, as connections open one after another.
    for (int64_t c = 0; c < traffic.clients; ++c) send_at(c * 1'000'000 / traffic.clients);
  }

  int64_t next_ns() const { return sent_.empty() ? kNever : sent_.top().first; }
  /// The next request, with its number; where requests come at a rate another one is on its way then.
  std::pair<int64_t, int64_t> take() {
    const auto next = sent_.top();
    sent_.pop();
    if (traffic_.clients == 0) send_at(next.first + next_gap());
    return next;
  }
  size_t draw_group() {
    if (cumulative_.size() == 1) return 0;
    const double at = groups_random_.uniform() * cumulative_.back();
    return static_cast<size_t>(std::upper_bound(cumulative_.begin(), cumulative_.end() - 1, at) -
                               cumulative_.begin());
  }
  /// A client has its answer, or a refusal, and sends again at `at_ns`.
  void send_again(int64_t at_ns) {
    if (traffic_.clients > 0) send_at(at_ns);
  }

 private:
  using Sent = std::pair<int64_t, int64_t>;  // when; number, for ties

  int64_t next_gap() { return static_cast<int64_t>(gaps_random_.exponential(1e9 / traffic_.rate)); }
  void send_at(int64_t at_ns) { sent_.emplace(at_ns, count_++); }

  const Traffic& traffic_;
  std::vector<double> cumulative_;
  // A stream for each purpose: what one configuration draws does not shift another's arrivals.
  base::Rng gaps_random_{traffic_.seed, 1}, groups_random_{traffic_.seed, 2};
  std::priority_queue<Sent, std::vector<Sent>, std::greater<>> sent_;
  int64_t count_ = 0;
};

/// Those that wait, in order of arrival. None is due and none has rights of its own, so that a vector does
/// what sched::WaitingQueue needs an ordered map for.
class Line {
 public:
  size_t size() const { return queue_.size() - first_; }
  void push(const sched::Waiting& waiting, const Origin& origin) {
    queue_.push_back(waiting);
    origins_.push_back(origin);
  }

  /// The beginning that decides: once the first one's group is sure to fill a batch, who comes later changes
  /// nothing.
  std::span<const sched::Waiting> deciding(int64_t max_rows) const {
    int64_t rows = 0;
    size_t end = first_;
    while (end < queue_.size() && rows <= max_rows) {
      if (queue_[end].group == queue_[first_].group) rows += queue_[end].rows;
      ++end;
    }
    return {queue_.data() + first_, end - first_};
  }

  /// Takes these of the deciding ones out; the others of them move up to the rest. Gives their rows.
  int64_t take(const std::vector<size_t>& taken, std::vector<Origin>& batch) {
    int64_t rows = 0;
    for (size_t i : taken) {
      rows += queue_[first_ + i].rows;
      batch.push_back(origins_[first_ + i]);
    }
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
    if (first_ < 4096 || 2 * first_ < queue_.size()) return rows;
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(first_));
    origins_.erase(origins_.begin(), origins_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
    return rows;
  }

 private:
  std::vector<sched::Waiting> queue_;  ///< from first_ on; in front lies what has left
  std::vector<Origin> origins_;        ///< of the same requests
  size_t first_ = 0;
};

struct Instance {
  int64_t started_ns = 0, free_ns = kNever;  ///< of its batch; free_ns kNever: idle
  std::vector<Origin> batch;
  int64_t padded_rows = 0;
  bool is_idle() const { return free_ns == kNever; }
};

sched::SchedulerOptions scheduler_options(const Batching& batching) {
  sched::SchedulerOptions options;
  options.limits = batching.limits;
  options.instances = batching.limits.instances;
  options.padding.row_buckets = batching.row_buckets;
  options.is_window_adaptive = batching.is_window_adaptive;
  options.runs_whole = batching.runs_whole;
  return options;
}

/// Events one after another. What is decided and learned is the scheduler's own: decide(), BatchTimes,
/// ClientLoad.
class Simulation {
 public:
  Simulation(const Batching& batching, const ServiceTimes& service, const Traffic& traffic,
             const std::vector<LatencyGoal>& goals)
      : batching_(batching),
        service_(service),
        traffic_(traffic),
        half_overhead_ns_(static_cast<int64_t>(service.overhead_ns / 2)),
        clients_(traffic),
        instances_(static_cast<size_t>(batching.limits.instances)),
        options_(scheduler_options(batching)) {
    for (const LatencyGoal& goal : goals) {
      const double most = (1 - goal.quantile) * static_cast<double>(traffic.requests);
      allowed_.push_back({goal.bound_ns, static_cast<int64_t>(most)});
    }
  }

  Simulated run() {
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
  /// A late answer uses up what a goal allows.
  struct Allowance {
    int64_t bound_ns = 0;
    int64_t left = 0;
  };

  int64_t next_event() const {
    int64_t next = clients_.next_ns() == kNever ? kNever : clients_.next_ns() + half_overhead_ns_;
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
      load_.ended(i.batch.size(), false);
      sched::Timing timing{
          .started_ns = i.started_ns, .finished_ns = i.free_ns, .padded_rows = i.padded_rows};
      times_.computed(timing, i.batch[0].group);
      for (const Origin& origin : i.batch) answer(origin);
      i.batch.clear();
      i.free_ns = kNever;
    }
  }

  void answer(const Origin& origin) {
    const int64_t at_ns = now_ns_ + half_overhead_ns_;
    clients_.send_again(at_ns);
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
    while (clients_.next_ns() != kNever && clients_.next_ns() + half_overhead_ns_ <= now_ns_) {
      const auto [sent_ns, number] = clients_.take();
      const bool is_counted = number >= traffic_.warm_up && number < traffic_.warm_up + traffic_.requests;
      if (number == traffic_.warm_up) counted_from_ns_ = std::max<int64_t>(1, now_ns_);
      if (line_.size() >= batching_.max_queue) {
        result_.refused += is_counted ? 1 : 0;
        clients_.send_again(now_ns_ + 1'000'000);
        for (Allowance& a : allowed_) {
          if (is_counted && --a.left < 0) result_.is_cut_short = true;
        }
        continue;
      }
      const size_t group = clients_.draw_group();
      line_.push({.rows = traffic_.rows, .enqueued_ns = now_ns_, .group = group},
                 {sent_ns, group, is_counted});
      load_.accepted(line_.size());
    }
  }

  void start_batches() {
    wake_ns_ = kNever;
    for (Instance& instance : instances_) {
      if (line_.size() == 0) return;
      if (!instance.is_idle()) continue;
      sched::BatchLimits limits = times_.limits(now_ns_);
      if (times_.may_end_window() && load_.is_complete(line_.size())) limits.window_ns = 0;
      const sched::Decision decision = sched::decide(line_.deciding(limits.max_rows), now_ns_, limits);
      if (decision.take.empty()) {
        wake_ns_ = decision.wake_ns;
        return;
      }
      start_batch(instance, decision.take);
    }
  }

  void start_batch(Instance& instance, const std::vector<size_t>& taken) {
    const int64_t rows = line_.take(taken, instance.batch);
    load_.began(taken.size(), false);
    int busy = 1;
    for (const Instance& i : instances_) busy += i.is_idle() ? 0 : 1;
    instance.padded_rows = sched::bucket_of(batching_.row_buckets, rows);
    double took_ns = service_.usual_ns(instance.batch[0].group, instance.padded_rows, busy);
    if (!service_.ratios.empty()) took_ns *= service_.ratios[service_random_.below(service_.ratios.size())];
    instance.started_ns = now_ns_;
    instance.free_ns = now_ns_ + std::max<int64_t>(1, static_cast<int64_t>(took_ns));
    busy_ns_ += took_ns;
    service_ns_ += took_ns * static_cast<double>(taken.size());
    ++batches_;
    batched_ += static_cast<int64_t>(taken.size());
  }

  const Batching& batching_;
  const ServiceTimes& service_;
  const Traffic& traffic_;
  const int64_t half_overhead_ns_;
  std::vector<Allowance> allowed_;
  Clients clients_;
  base::Rng service_random_{traffic_.seed, 3};
  Line line_;
  std::vector<Instance> instances_;
  const sched::SchedulerOptions options_;
  sched::BatchTimes times_{options_};  ///< learnt as the server learns them
  sched::ClientLoad load_;
  int64_t now_ns_ = 0, wake_ns_ = kNever, counted_from_ns_ = 0;
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
