// Tests overload under a fake clock: at three times the capacity, goodput stays near its peak, and accepted
// requests are in time. Simulates one queue in discrete steps: only the policy and the cost model are real.
#include <gtest/gtest.h>

#include <cstdio>
#include <deque>
#include <random>

#include "base/clock.h"
#include "sched/policy/batch_cost.h"
#include "sched/policy/batch_policy.h"

namespace trireme::sched {
namespace {

using base::kNsPerMs;
using base::kNsPerSecond;

struct Traffic {
  double load = 1;                           ///< of the capacity
  std::vector<int64_t> patience_ms = {100};  ///< drawn evenly
  double noise = 0.1;                        ///< of a batch's time
  bool is_aware = true;                      ///< the policy knows when answers are due
};

struct Result {
  double goodput = 0;     ///< answers in time per second
  uint64_t accepted = 0;  ///< past admission
  uint64_t in_time = 0, late = 0, shed = 0, refused = 0;
};

constexpr int64_t kOverloadRows = 32;
constexpr size_t kOverloadQueue = 1024;

/// 2 ms plus 0.5 ms per row of the batch's bucket: 32 rows take 18 ms, so 1,778 rows per second.
int64_t true_cost_ns(int64_t rows) {
  int64_t bucket = 1;
  while (bucket < rows) bucket *= 2;
  return 2 * kNsPerMs + bucket * kNsPerMs / 2;
}

double capacity() { return kOverloadRows * 1e9 / static_cast<double>(true_cost_ns(kOverloadRows)); }

class Simulation {
 public:
  explicit Simulation(const Traffic& traffic) : traffic_(traffic), gap_(capacity() * traffic.load) {}

  Result run(int64_t seconds) {
    const int64_t end_ns = seconds * kNsPerSecond;
    int64_t arrival_ns = next_arrival(0), free_ns = 0;
    while (clock_.now_ns() < end_ns) {
      while (arrival_ns <= clock_.now_ns()) {
        arrive(arrival_ns, free_ns);
        arrival_ns = next_arrival(arrival_ns);
      }
      int64_t next_ns = arrival_ns;
      if (free_ns <= clock_.now_ns()) {
        const Decision d = decide(queue_, clock_.now_ns(), limits_, predictor());
        shed(d);
        if (!d.take.empty()) free_ns = serve(d);
        remove(d);
        next_ns = std::min(next_ns, d.wake_ns);
      }
      if (free_ns > clock_.now_ns()) next_ns = std::min(next_ns, free_ns);
      clock_.sleep_until(std::max(next_ns, clock_.now_ns() + 1));
    }
    result_.goodput = static_cast<double>(result_.in_time) / static_cast<double>(seconds);
    return result_;
  }

 private:
  PredictNs predictor() const {
    if (!traffic_.is_aware) return {};
    return [this](uint64_t group, int64_t rows) {
      int64_t bucket = 1;
      while (bucket < rows) bucket *= 2;
      return cost_.predict(group, bucket);
    };
  }
  int64_t next_arrival(int64_t from_ns) { return from_ns + static_cast<int64_t>(gap_(random_) * 1e9); }

  void arrive(int64_t at_ns, int64_t free_ns) {
    const auto pick = static_cast<size_t>(random_() % traffic_.patience_ms.size());
    const int64_t due_ns = at_ns + traffic_.patience_ms[pick] * kNsPerMs;
    Waiting w{.enqueued_ns = at_ns};
    // Without awareness, the due time only limits the wait, as in a server that only has queue timeouts.
    (traffic_.is_aware ? w.finish_ns : w.deadline_ns) = due_ns;
    const bool is_hopeless =
        traffic_.is_aware && !admits(queue_, w, std::max(free_ns, at_ns), limits_, predictor());
    if (queue_.size() >= kOverloadQueue || is_hopeless) {
      ++result_.refused;
      return;
    }
    ++result_.accepted;
    queue_.push_back(w);
  }
  void shed(const Decision& d) { result_.shed += d.expired.size() + d.hopeless.size(); }
  int64_t serve(const Decision& d) {
    std::normal_distribution<double> noise(1, traffic_.noise);
    const auto rows = static_cast<int64_t>(d.take.size());
    const auto took =
        static_cast<int64_t>(static_cast<double>(true_cost_ns(rows)) * std::max(0.5, noise(random_)));
    const int64_t done_ns = clock_.now_ns() + took;
    for (size_t i : d.take) {
      const int64_t due_ns = traffic_.is_aware ? queue_[i].finish_ns : queue_[i].deadline_ns;
      ++(done_ns <= due_ns ? result_.in_time : result_.late);
    }
    int64_t bucket = 1;
    while (bucket < rows) bucket *= 2;
    cost_.observe(0, bucket, took, done_ns);
    return done_ns;
  }
  void remove(const Decision& d) {
    std::vector<bool> leaves(queue_.size(), false);
    for (const auto* list : {&d.take, &d.expired, &d.hopeless}) {
      for (size_t i : *list) leaves[i] = true;
    }
    size_t index = 0;
    std::erase_if(queue_, [&](const Waiting&) { return leaves[index++]; });
  }

  const Traffic traffic_;
  base::FakeClock clock_;
  std::mt19937_64 random_{11};
  std::exponential_distribution<double> gap_;
  BatchLimits limits_{.max_rows = kOverloadRows};
  BatchCost cost_;
  std::vector<Waiting> queue_;
  Result result_;
};

double peak(Traffic traffic) {
  double best = 0;
  for (double load : {0.5, 0.7, 0.8, 0.9, 1.0, 1.2}) {
    traffic.load = load;
    best = std::max(best, Simulation(traffic).run(30).goodput);
  }
  return best;
}

void expect_goodput(Traffic traffic, double share_of_peak) {
  const double best = peak(traffic);
  traffic.load = 3;
  const Result r = Simulation(traffic).run(30);
  std::printf("peak %.0f/s; at 3 times capacity %.0f/s (%.1f %%), accepted %llu, late %llu, shed %llu\n",
              best, r.goodput, 100 * r.goodput / best, static_cast<unsigned long long>(r.accepted),
              static_cast<unsigned long long>(r.late), static_cast<unsigned long long>(r.shed));
  EXPECT_GE(r.goodput, share_of_peak * best);
  // Accepted requests are answered in time; the others were refused at once.
  EXPECT_GE(static_cast<double>(r.in_time), 0.97 * static_cast<double>(r.accepted));
}

TEST(Overload, GoodputStaysNearItsPeakAtThreeTimesTheCapacity) { expect_goodput({}, 0.9); }

TEST(Overload, AlsoWithUrgentAndPatientRequestsMixed) {
  expect_goodput({.patience_ms = {25, 60, 400}, .noise = 0.2}, 0.9);
}

/// The benefit of awareness: with queue timeouts only, batches at the capacity limit fill with requests that
/// start in time and end late.
TEST(Overload, TimeoutsOfTheQueueAloneCollapse) {
  Traffic traffic{.patience_ms = {50}, .is_aware = false};
  const double best = peak(traffic);
  traffic.load = 3;
  EXPECT_LT(Simulation(traffic).run(30).goodput, 0.5 * best);
  traffic.is_aware = true;
  EXPECT_GE(Simulation(traffic).run(30).goodput, 0.9 * peak(traffic));
}

}  // namespace
}  // namespace trireme::sched
