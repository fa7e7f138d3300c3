// A day of traffic in seconds: the scheduler of texts under a clock that only steps move, at stated prices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "model/zoo/llama.h"
#include "sched/text/token_scheduler.h"

namespace trireme::sched {
namespace {

using base::kNsPerMs;
using base::kNsPerSecond;
using engine::FinishReason;

constexpr int64_t kHour = 3600 * kNsPerSecond, kDay = 24 * kHour;
constexpr int64_t kFloodFrom = 14 * kHour,
                  kFloodUntil = 15 * kHour;  // one tenant asks for three times all there is
constexpr size_t kMostWaiting = 64;          // more are refused, as a service does

/// What a step takes on a machine that is slow: its weights are read, and each token computed.
int64_t step_ns(int64_t tokens) { return 900 * kNsPerMs + 60 * kNsPerMs * tokens; }

enum class Outcome : uint8_t { none, done, refused, expired, cancelled };

struct Asked {
  int64_t at_ns = 0;
  engine::GenerateRequest request;
  Standing standing;
  int64_t leaves_ns = INT64_MAX;  // nobody waits any more from then on
  Outcome outcome = Outcome::none;
  int64_t begun_ns = -1, answered = 0;
};

constexpr uint32_t kUsual = 100;
enum Tenant : uint32_t { kSteady = 1, kFlooding = 2, kUrgent = 3, kBatch = 4 };

/// Draws a day's requests, in the order in which they come.
class Traffic {
 public:
  std::vector<Asked> day() {
    // People: few at night, many at noon.
    arrive(
        0, kDay, [](double hour) { return 0.06 * (1 - 0.8 * std::cos(hour / 24 * 2 * M_PI)); }, kSteady,
        kUsual);
    arrive(
        kFloodFrom, kFloodUntil, [](double) { return 0.9; }, kFlooding, kUsual);
    arrive(
        0, kDay, [](double) { return 0.004; }, kUrgent, 1);
    for (int i = 0; i < 600; ++i) list_.push_back(asked(3 * kHour, kBatch, kBackground));
    std::stable_sort(list_.begin(), list_.end(),
                     [](const Asked& a, const Asked& b) { return a.at_ns < b.at_ns; });
    return std::move(list_);
  }

 private:
  template <class Rate>
  void arrive(int64_t from_ns, int64_t until_ns, Rate rate, uint32_t tenant, uint32_t priority) {
    for (int64_t at = from_ns;;) {
      const double per_second = rate(static_cast<double>(at) / static_cast<double>(kHour));
      at += static_cast<int64_t>(-std::log(1 - rng_.uniform()) / per_second *
                                 static_cast<double>(kNsPerSecond));
      if (at >= until_ns) return;
      list_.push_back(asked(at, tenant, priority));
    }
  }

  Asked asked(int64_t at_ns, uint32_t tenant, uint32_t priority) {
    Asked a{.at_ns = at_ns, .standing = {.priority = priority, .tenant = tenant}};
    for (uint64_t i = 0, n = 4 + rng_.below(37); i < n; ++i)
      a.request.prompt.push_back(static_cast<int64_t>(rng_.below(61)));
    a.request.max_tokens = static_cast<int64_t>(2 + rng_.below(23));
    a.request.sampling.temperature = 0.8;
    a.request.sampling.seed = static_cast<int64_t>(list_.size());
    if (priority == kBackground) return a;
    if (rng_.below(5) == 0) a.standing.deadline_ns = at_ns + 30 * kNsPerSecond;
    if (rng_.below(33) == 0) a.leaves_ns = at_ns + static_cast<int64_t>(rng_.below(20)) * kNsPerSecond;
    return a;
  }

  base::Rng rng_{20261123};
  std::vector<Asked> list_;
};

/// Runs requests through a scheduler as a service would, on simulated time.
class Day {
 public:
  Day(TokenScheduler& scheduler, std::vector<Asked> list) : scheduler_(scheduler), list_(std::move(list)) {}

  void run() {
    while (next_ < list_.size() || !scheduler_.is_idle()) {
      take_in();
      if (scheduler_.is_idle()) {
        clock_.sleep_until(list_[next_].at_ns);
      } else {
        step();
      }
    }
  }

  const std::vector<Asked>& list() const { return list_; }
  /// Tokens of answers in an hour of the day, by tenant.
  int64_t tokens_in(int64_t hour, uint32_t tenant) const {
    const auto at = tokens_.find({hour, tenant});
    return at == tokens_.end() ? 0 : at->second;
  }
  int64_t mixed_steps = 0;  ///< in which texts in the background ran beside others

 private:
  void take_in() {
    for (; next_ < list_.size() && list_[next_].at_ns <= clock_.now_ns(); ++next_) {
      Asked& a = list_[next_];
      if (a.standing.priority != kBackground && waiting_ >= kMostWaiting) {
        a.outcome = Outcome::refused;
        continue;
      }
      waiting_ += a.standing.priority != kBackground ? 1 : 0;
      live_[scheduler_.add(a.request, a.standing)] = next_;
    }
    for (const auto& [number, at] : live_) {
      if (list_[at].leaves_ns <= clock_.now_ns()) scheduler_.cancel(number);
    }
  }

  void step() {
    const auto& events = scheduler_.step(clock_.now_ns());
    for (const TokenScheduler::Begun& b : scheduler_.begun()) {
      Asked& a = list_[live_.at(b.request)];
      EXPECT_EQ(a.begun_ns, -1) << "began twice";
      a.begun_ns = clock_.now_ns();
      waiting_ -= a.standing.priority != kBackground ? 1 : 0;
    }
    if (scheduler_.step_tokens() > 0) clock_.advance(step_ns(scheduler_.step_tokens()));
    bool has_background = false, has_others = false;
    for (const engine::GenerateEvent& e : events) {
      Asked& a = list_[live_.at(e.request)];
      if (e.token >= 0) {
        (a.standing.priority == kBackground ? has_background : has_others) = true;
        ++a.answered;
        ++tokens_[{clock_.now_ns() / kHour, a.standing.tenant}];
      }
      if (e.finish != FinishReason::none) end(a, e);
    }
    mixed_steps += has_background && has_others ? 1 : 0;
  }

  void end(Asked& a, const engine::GenerateEvent& e) {
    EXPECT_EQ(a.outcome, Outcome::none) << "ended twice";
    a.outcome = e.finish == FinishReason::cancelled ? Outcome::cancelled
                : e.finish == FinishReason::expired ? Outcome::expired
                                                    : Outcome::done;
    if (a.outcome == Outcome::done) {
      EXPECT_EQ(a.answered, a.request.max_tokens);
    }
    if (a.begun_ns < 0 && a.standing.priority != kBackground) --waiting_;
    live_.erase(e.request);
  }

  TokenScheduler& scheduler_;
  std::vector<Asked> list_;
  base::FakeClock clock_;
  size_t next_ = 0, waiting_ = 0;
  std::map<int64_t, size_t> live_;  // by the scheduler's number
  std::map<std::pair<int64_t, uint32_t>, int64_t> tokens_;
};

engine::DecodeSession session() {
  model::zoo::LlamaConfig c;
  c.vocabulary = 61;
  c.positions = 96;
  c.width = 16;
  c.layers = 1;
  c.heads = 2;
  c.kv_heads = 1;
  c.inner = 24;
  model::RandomParams params(9);
  // Places for eight texts and pages for about six: some are put back.
  constexpr int64_t kPageBytes = 1 * 2 * 1 * 16 * 8 * 4;
  return engine::DecodeSession(
      std::make_shared<engine::DecodeModel>(model::zoo::llama(c, params).graph),
      {.threads = 1, .cache_bytes = 20 * kPageBytes, .max_sequences = 8, .max_tokens = 48});
}

/// Seconds that requests of a tenant waited that began and came in [from, until), ascending.
std::vector<double> waits(const Day& day, uint32_t tenant, int64_t from_ns, int64_t until_ns) {
  std::vector<double> list;
  for (const Asked& a : day.list()) {
    if (a.standing.tenant == tenant && a.at_ns >= from_ns && a.at_ns < until_ns && a.begun_ns >= 0)
      list.push_back(static_cast<double>(a.begun_ns - a.at_ns) / static_cast<double>(kNsPerSecond));
  }
  std::sort(list.begin(), list.end());
  return list;
}

double quantile(const std::vector<double>& ascending, double q) {
  return ascending.at(static_cast<size_t>(q * static_cast<double>(ascending.size() - 1)));
}

TEST(SimulatedDay, EveryRequestEndsOnceAndFloodsHoldNobodyUp) {
  engine::DecodeSession decode = session();
  TokenScheduler scheduler(decode);
  Day day(scheduler, Traffic().day());
  day.run();
  std::map<Outcome, int64_t> ends;
  for (const Asked& a : day.list()) ++ends[a.outcome];
  EXPECT_EQ(ends[Outcome::none], 0);
  EXPECT_GT(ends[Outcome::done], 5000);
  EXPECT_GT(ends[Outcome::cancelled], 50);
  EXPECT_GT(ends[Outcome::expired], 50);
  EXPECT_GT(ends[Outcome::refused], 500) << "the flood";
  for (const Asked& a : day.list()) {
    if (a.standing.priority == kBackground) {
      EXPECT_EQ(a.outcome, Outcome::done) << "what others left was enough";
    }
  }
  EXPECT_GT(scheduler.put_back(), 100) << "pages ran out now and then";
  EXPECT_EQ(day.mixed_steps, 0) << "a text in the background took part beside others";
  // Nothing is left behind.
  EXPECT_EQ(scheduler.running() + scheduler.waiting(), 0u);
  EXPECT_EQ(scheduler.page_use(), 0);
  EXPECT_EQ(decode.free_pages(), decode.pool().pages());
  // At rest nobody waits for long, and who is urgent waits for a step or two even in the flood.
  EXPECT_LT(quantile(waits(day, kSteady, 0, kFloodFrom), 0.99), 60);
  EXPECT_LT(quantile(waits(day, kUrgent, kFloodFrom, kFloodUntil), 0.9), 25);
  // The flood fills the queue of everybody, but not the share of those who asked before: theirs is served
  // first.
  const double steady = quantile(waits(day, kSteady, kFloodFrom, kFloodUntil), 0.5);
  const double flooding = quantile(waits(day, kFlooding, kFloodFrom, kFloodUntil), 0.5);
  EXPECT_LT(3 * steady, flooding) << steady << " s and " << flooding << " s";
}

TEST(SimulatedDay, AFloodCostsNoGoodput) {
  // As many tokens in the flooded hour as where exactly enough waits, and nobody is turned away.
  const auto tokens_of = [](std::vector<Asked> list) {
    engine::DecodeSession decode = session();
    TokenScheduler scheduler(decode);
    Day day(scheduler, std::move(list));
    day.run();
    int64_t sum = 0;
    for (uint32_t tenant : {kSteady, kFlooding, kUrgent}) sum += day.tokens_in(kFloodFrom / kHour, tenant);
    return static_cast<double>(sum);
  };
  std::vector<Asked> flooded = Traffic().day(), sated;
  std::erase_if(flooded, [](const Asked& a) {
    return a.standing.priority == kBackground || a.at_ns < kFloodFrom - kHour || a.at_ns >= kFloodUntil;
  });
  for (Asked& a : flooded) a.leaves_ns = INT64_MAX, a.standing.deadline_ns = 0;
  // A closed loop of twelve: each asks when another one of them is through, which at these prices is each 3
  // s.
  for (const Asked& a : flooded) {
    sated.push_back(a);
    sated.back().at_ns = kFloodFrom - kHour / 4 + static_cast<int64_t>(sated.size()) * 3 * kNsPerSecond;
  }
  const double most = tokens_of(sated), got = tokens_of(flooded);
  EXPECT_GE(got, 0.9 * most);
  EXPECT_GT(most, 5000);
}

}  // namespace
}  // namespace trireme::sched
