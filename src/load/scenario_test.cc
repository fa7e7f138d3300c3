// The four scenarios under a simulated server: issue times, counts, verdicts, and repeatable draws.
#include "load/scenario.h"

#include <gtest/gtest.h>

#include <cmath>
#include <queue>

#include "base/error.h"

namespace trireme::load {
namespace {

using base::kNsPerMs;
using base::kNsPerSecond;

struct Log {
  std::vector<Send> sends;
  ScenarioResult result;
};

// A server with `workers` that takes service(k) ns for the k-th request, first come, first served; time jumps
// from event to event.
template <class Service>
Log simulate(const ScenarioSettings& settings, size_t workers, Service service, int64_t fail_at = -1) {
  ScenarioPacer pacer(settings);
  base::FakeClock clock;
  using Answer = std::pair<int64_t, size_t>;  // time, index of the request
  std::priority_queue<Answer, std::vector<Answer>, std::greater<>> answers;
  std::vector<int64_t> free_at(workers, 0);
  Log log;
  for (;;) {
    const int64_t send_at = pacer.done() ? Pacer::kNever : pacer.next_ns();
    const int64_t answer_at = answers.empty() ? Pacer::kNever : answers.top().first;
    if (send_at == Pacer::kNever && answer_at == Pacer::kNever) break;
    clock.sleep_until(std::min(send_at, answer_at));
    if (answer_at <= send_at) {
      const size_t at = answers.top().second;
      answers.pop();
      pacer.answered(log.sends[at].query, clock.now_ns(), static_cast<int64_t>(at) != fail_at);
      continue;
    }
    log.sends.push_back(pacer.take(clock.now_ns()));
    int64_t& worker = *std::min_element(free_at.begin(), free_at.end());
    worker = std::max(worker, clock.now_ns()) + service(log.sends.size() - 1);
    answers.emplace(worker, log.sends.size() - 1);
  }
  log.result = pacer.result();
  return log;
}

ScenarioSettings settings_of(Scenario scenario) {
  ScenarioSettings s;
  s.scenario = scenario;
  s.sample_count = 10;
  return s;
}

TEST(Scenario, SingleStreamIssuesOneAfterTheOther) {
  // One query in eleven takes 20 ms, the others 5 ms.
  const auto service = [](size_t k) { return k % 11 == 10 ? 20 * kNsPerMs : 5 * kNsPerMs; };
  const Log log = simulate(settings_of(Scenario::single_stream), 4, service);
  for (size_t i = 1; i < log.sends.size(); ++i) {
    EXPECT_EQ(log.sends[i].scheduled_ns, log.sends[i - 1].scheduled_ns + service(i - 1));
    EXPECT_LT(log.sends[i].request, 10u);
  }
  const ScenarioResult& r = log.result;
  EXPECT_TRUE(r.invalid.empty()) << r.invalid[0];
  EXPECT_GE(r.issued_duration_ns, 10 * kNsPerSecond);
  EXPECT_LT(r.issued_duration_ns, 10 * kNsPerSecond + 20 * kNsPerMs);
  EXPECT_EQ(r.queries, 1573);                     // 70 ms for eleven
  EXPECT_EQ(r.percentile_ns, 5 * kNsPerMs);       // 143 of 1573 are slow: 9.1 %
  EXPECT_EQ(r.early.estimate_ns, 20 * kNsPerMs);  // the confident estimate is on the safe side
  EXPECT_EQ(r.metric, 20e6);
}

TEST(Scenario, StreamsNeedCountsAndDuration) {
  ScenarioSettings s = settings_of(Scenario::single_stream);
  s.min_duration_ns = kNsPerMs;
  EXPECT_EQ(simulate(s, 1, [](size_t) { return kNsPerMs; }).result.queries, 100);  // by count
  s.max_queries = 50;
  const ScenarioResult few = simulate(s, 1, [](size_t) { return kNsPerMs; }).result;
  ASSERT_EQ(few.invalid.size(), 2u);
  EXPECT_NE(few.invalid[0].find("minimum count not met: 50 of 100"), std::string::npos);
  EXPECT_NE(few.invalid[1].find("early stopping needs 64 queries, had 50"), std::string::npos);
  s.min_queries = 1;
  s.max_queries = 64;
  s.min_duration_ns = kNsPerSecond;
  const ScenarioResult quick = simulate(s, 1, [](size_t) { return kNsPerMs; }).result;
  ASSERT_EQ(quick.invalid.size(), 1u);
  EXPECT_NE(quick.invalid[0].find("minimum duration not met: 0.064 s of 1.000 s"), std::string::npos);
}

TEST(Scenario, MultiStreamIsAsSlowAsItsSlowestSample) {
  ScenarioSettings s = settings_of(Scenario::multi_stream);
  s.min_queries = 662;
  s.min_duration_ns = kNsPerSecond;
  const Log log = simulate(s, 8, [](size_t k) { return static_cast<int64_t>(k % 8 + 1) * kNsPerMs; });
  EXPECT_EQ(log.sends.size(), 662u * 8);
  for (size_t i = 0; i < log.sends.size(); ++i) {
    EXPECT_EQ(log.sends[i].request, (log.sends[i - i % 8].request + i % 8) % 10);
    EXPECT_EQ(log.sends[i].scheduled_ns, static_cast<int64_t>(i / 8) * 8 * kNsPerMs);
  }
  EXPECT_TRUE(log.result.invalid.empty());
  EXPECT_EQ(log.result.metric, 8e6);
  EXPECT_EQ(log.result.early.allowed, 1);
  s.min_queries = 661;
  const ScenarioResult few = simulate(s, 8, [](size_t) { return 2 * kNsPerMs; }).result;
  EXPECT_EQ(few.queries, 661);
  ASSERT_EQ(few.invalid.size(), 1u);
  EXPECT_NE(few.invalid[0].find("early stopping needs 662"), std::string::npos);
}

TEST(Scenario, ServerArrivalsDoNotWait) {
  ScenarioSettings s = settings_of(Scenario::server);
  s.target_qps = 200;
  s.bound_ns = 10 * kNsPerMs;
  const Log fast = simulate(s, 1, [](size_t) { return kNsPerMs; });
  EXPECT_TRUE(fast.result.invalid.empty()) << fast.result.invalid[0];
  EXPECT_EQ(fast.sends[0].scheduled_ns, 0);
  EXPECT_GE(fast.result.issued_duration_ns, 10 * kNsPerSecond);
  EXPECT_NEAR(fast.result.metric, 200, 10);
  double squares = 0, sum = 0;
  for (size_t i = 1; i < fast.sends.size(); ++i) {
    const auto gap = static_cast<double>(fast.sends[i].scheduled_ns - fast.sends[i - 1].scheduled_ns);
    sum += gap;
    squares += gap * gap;
  }
  const auto n = static_cast<double>(fast.sends.size() - 1);
  EXPECT_NEAR(std::sqrt(squares / n) / (sum / n), std::sqrt(2.0), 0.1);  // exponential
  // The same queries at the same times, however slow the answers.
  const Log slow = simulate(s, 1, [](size_t) { return 20 * kNsPerMs; });
  ASSERT_EQ(slow.sends.size(), fast.sends.size());
  for (size_t i = 0; i < fast.sends.size(); ++i) {
    EXPECT_EQ(slow.sends[i].scheduled_ns, fast.sends[i].scheduled_ns);
    EXPECT_EQ(slow.sends[i].request, fast.sends[i].request);
  }
  ASSERT_EQ(slow.result.invalid.size(), 2u);
  EXPECT_NE(slow.result.invalid[0].find("over the bound"), std::string::npos);
}

TEST(Scenario, ServerAllowsAsManyLateOnesAsTheBinomialBound) {
  ScenarioSettings s = settings_of(Scenario::server);
  s.target_qps = 10;
  s.min_queries = 1001;  // at p99: three over the bound
  s.max_queries = 1001;
  s.min_duration_ns = kNsPerSecond;
  const auto late = [](size_t count) {
    return [count](size_t k) { return k < count ? 150 * kNsPerMs : kNsPerMs; };
  };
  const ScenarioResult three = simulate(s, 1001, late(3)).result;
  EXPECT_TRUE(three.invalid.empty()) << three.invalid[0];
  EXPECT_EQ(three.over_bound, 3);
  EXPECT_EQ(three.needed_for_over, 1001);
  const ScenarioResult four = simulate(s, 1001, late(4)).result;
  ASSERT_EQ(four.invalid.size(), 1u);
  EXPECT_NE(four.invalid[0].find("for 4 over the bound, had 1001"), std::string::npos);
  const ScenarioResult lost = simulate(s, 1001, late(0), 7).result;
  ASSERT_EQ(lost.invalid.size(), 1u);
  EXPECT_EQ(lost.invalid[0], "1 queries failed");
  EXPECT_EQ(lost.over_bound, 1);
  EXPECT_EQ(lost.sorted_ns.back(), Pacer::kNever);
}

TEST(Scenario, OfflineIsOneQueryOfEverySample) {
  ScenarioSettings s = settings_of(Scenario::offline);
  s.target_qps = 4000;
  const Log log = simulate(s, 4, [](size_t) { return kNsPerMs; });
  EXPECT_EQ(log.result.samples, 44'000);  // rate x duration + 10 %
  EXPECT_EQ(log.sends[12].request, 2u);   // in order, again and again
  EXPECT_EQ(log.sends.back().scheduled_ns, 0);
  EXPECT_NEAR(log.result.metric, 4000, 1e-6);
  EXPECT_TRUE(log.result.invalid.empty());
  s.target_qps = 1;
  const ScenarioResult small = simulate(s, 4, [](size_t) { return kNsPerMs; }).result;
  EXPECT_EQ(small.samples, 24'576);
  ASSERT_EQ(small.invalid.size(), 1u);  // 6.1 s
  EXPECT_NE(small.invalid[0].find("raise --rate"), std::string::npos);
}

TEST(Scenario, SeedsDecideTheDraws) {
  const auto service = [](size_t) { return kNsPerMs; };
  ScenarioSettings s = settings_of(Scenario::server);
  const Log one = simulate(s, 1, service), again = simulate(s, 1, service);
  s.sample_seed += 1;
  s.schedule_seed += 1;
  const Log other = simulate(s, 1, service);
  int same_time = 0, same_sample = 0;
  for (size_t i = 1; i < 50; ++i) {
    EXPECT_EQ(one.sends[i].scheduled_ns, again.sends[i].scheduled_ns);
    same_time += one.sends[i].scheduled_ns == other.sends[i].scheduled_ns ? 1 : 0;
    same_sample += one.sends[i].request == other.sends[i].request ? 1 : 0;
  }
  EXPECT_EQ(same_time, 0);
  EXPECT_LT(same_sample, 20);
  s.sample_count = 0;
  EXPECT_THROW(ScenarioPacer{s}, base::Error);
}

TEST(Scenario, ADeadServerEndsTheRun) {
  ScenarioPacer pacer(settings_of(Scenario::single_stream));
  int64_t now = 0;
  for (; !pacer.done(); ++now) pacer.answered(pacer.take(now).query, now + 1, false);
  EXPECT_EQ(pacer.result().failed, 100);
  EXPECT_FALSE(pacer.result().invalid.empty());
}

}  // namespace
}  // namespace trireme::load
