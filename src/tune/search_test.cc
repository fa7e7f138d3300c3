// The search on costs that are known: what must win, what must not, and how costs are read between sizes.
#include "tune/search.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace trireme::tune {
namespace {

/// A subject with batches and no model: the search needs its shape only.
Subject subject_of(size_t variants, std::vector<double> group_shares = {1}) {
  Subject s;
  s.name = "m";
  s.config.max_batch_size = 64;
  for (size_t v = 0; v < variants; ++v) s.variants.push_back({.name = base::concat("v", v)});
  for (double share : group_shares) s.groups.push_back({.share = share});
  return s;
}

/// 1 ms and 0.25 ms a row on one thread; threads help by their square root; a second variant takes half.
double cost_ns(size_t variant, Layout layout, int64_t rows) {
  return (1e6 + 0.25e6 * static_cast<double>(rows)) / std::sqrt(layout.threads) / (variant == 0 ? 1 : 2);
}

struct Setting {
  Subject subject;
  CostPlan plan;
  Costs costs;
  Wish wish;

  explicit Setting(size_t variants = 1) : subject(subject_of(variants)) {
    plan.layouts = layouts_of(4, {}, {});
    plan.rows = {1, 2, 4, 8, 16, 32, 64};
    for (size_t v = 0; v < variants; ++v) {
      for (Layout layout : plan.layouts) {
        for (int64_t rows : plan.rows) {
          costs.table.add({v, layout, layout.instances, 0, rows}, {cost_ns(v, layout, rows)});
          if (layout.instances > 1) costs.table.add({v, layout, 1, 0, rows}, {cost_ns(v, layout, rows)});
        }
        costs.footprints[{v, layout}] = {.weight_bytes = 10 << 20, .arena_bytes = 64 << 20};
      }
    }
    wish.machine_cores = 4;
    wish.goals = {{0.99, 50'000'000}};
  }

  std::vector<Prediction> run() const {
    const Predictor predictor(subject, costs, wish, {});
    return search(predictor, candidates_of(subject, plan, costs.table, {0, 2'000'000}, wish), wish);
  }
};

TEST(Layouts, FillTheMachineInSteps) {
  const std::vector<Layout> four = layouts_of(4, {}, {});
  for (Layout l : four) EXPECT_LE(l.cores(), 4);
  for (Layout wanted : std::vector<Layout>{{1, 1}, {1, 4}, {2, 2}, {3, 1}, {4, 1}})
    EXPECT_EQ(std::count(four.begin(), four.end(), wanted), 1) << wanted.instances << " x " << wanted.threads;
  EXPECT_EQ(layouts_of(1, {}, {}), (std::vector<Layout>{{1, 1}}));
  EXPECT_EQ(layouts_of(4, {8}, {2}), (std::vector<Layout>{{8, 2}}));  // asked for by name
  EXPECT_LT(layouts_of(128, {}, {}).size(), 80u);
  EXPECT_THROW(layouts_of(4, {}, {8}), base::Error);
}

TEST(RowBuckets, EndWithTheLargestBatch) {
  EXPECT_EQ(row_buckets(1, false), (std::vector<int64_t>{1}));
  EXPECT_EQ(row_buckets(12, false), (std::vector<int64_t>{1, 2, 4, 8, 12}));
  EXPECT_EQ(row_buckets(16, true), (std::vector<int64_t>{1, 2, 3, 4, 6, 8, 12, 16}));
}

TEST(CostTable, ReadsBetweenAndBeyondItsSizes) {
  CostTable t;
  const Layout two{2, 1};
  t.add({0, two, 2, 0, 1}, {10, 30, 20});
  t.add({0, two, 2, 0, 8}, {90});
  EXPECT_EQ(t.usual_ns(0, two, 0, 1, 2), 20);
  EXPECT_EQ(t.usual_ns(0, two, 0, 8, 2), 90);
  EXPECT_NEAR(t.usual_ns(0, two, 0, 2, 2), 30, 1e-9);
  EXPECT_EQ(t.usual_ns(0, two, 0, 16, 2), 180);
  // Alone it is half as long at one row, two thirds at eight.
  t.add({0, two, 1, 0, 1}, {10});
  t.add({0, two, 1, 0, 8}, {60});
  EXPECT_NEAR(t.usual_ns(0, two, 0, 1, 1), 10, 1e-9);
  EXPECT_NEAR(t.usual_ns(0, two, 0, 8, 1), 60, 1e-9);
  EXPECT_EQ(t.most_rows(0, two), 8);
  EXPECT_EQ(t.most_rows(1, two), 0);
  const std::vector<double> ratios = t.ratios(0, two);
  EXPECT_EQ(ratios.size(), 4u);
  EXPECT_EQ(median(ratios), 1);
}

/// Rows a second grow with the batch and with instances (threads help by their root only), so four
/// instances of one thread win, with batches as large as 50 ms allow.
TEST(Search, FindsTheMostRequestsWithinTheGoal) {
  const Setting setting;
  const std::vector<Prediction> list = setting.run();
  const Prediction& best = list.front();
  EXPECT_TRUE(best.is_feasible);
  EXPECT_EQ(best.candidate.layout, (Layout{4, 1}));
  EXPECT_GE(best.candidate.max_batch, 32);
  EXPECT_LE(best.p99_ns, 50e6);
  // No rate beats full batches one after another; near them the goal still holds.
  const double full = 4 * 64 * 1e9 / cost_ns(0, {4, 1}, 64);
  EXPECT_LT(best.throughput, full);
  EXPECT_GT(best.throughput, 0.85 * full);
  for (const Prediction& p : list) {
    EXPECT_FALSE(p.is_feasible && p.throughput > best.throughput * 1.002) << p.candidate.id();
  }
  // What it promises, an own simulation of the same rate keeps, and 10 % above saturation none does.
  const Predictor predictor(setting.subject, setting.costs, setting.wish, {});
  EXPECT_TRUE(predictor.at(best.candidate, best.rate * 0.98, 0, 100'000).meets(setting.wish.goals));
  EXPECT_FALSE(predictor.at(best.candidate, best.saturation * 1.1, 0, 100'000).meets(setting.wish.goals));
}

/// Costs were measured on an idle machine, the server runs beside other work that makes batches 1.4 times as
/// long: after one load under which the server's own times are known, predictions are those of the truth.
TEST(Search, LearnsFromTheServersTimes) {
  const Setting setting;
  Setting truth;
  for (Layout layout : truth.plan.layouts) {
    for (int64_t rows : truth.plan.rows)
      for (const int busy : {1, layout.instances})
        truth.costs.table.add({1, layout, busy, 0, rows}, {1.4 * cost_ns(0, layout, rows)});
  }
  truth.subject.variants.push_back({.name = "slow"});
  const Candidate c{.layout = {4, 1}, .max_batch = 16, .row_buckets = row_buckets(16, false)};
  Candidate slow = c;
  slow.variant = 1;
  Predictor predictor(setting.subject, setting.costs, setting.wish, {});
  const Predictor oracle(truth.subject, truth.costs, truth.wish, {});
  const double rate = 0.8 * oracle.saturation_of(slow);
  const Simulated real = oracle.at(slow, rate, 0, 40'000);
  const double before = predictor.at(c, rate, 0, 40'000).latency.quantile(0.99);
  EXPECT_LT(before, 0.75 * static_cast<double>(real.latency.quantile(0.99)));
  predictor.learn(c, {.rate = rate, .service_ns = real.service_ns, .throughput = real.throughput});
  EXPECT_NEAR(predictor.slowness(c), 1.4, 0.04);
  const double after = predictor.at(c, rate, 0, 40'000).latency.quantile(0.99);
  EXPECT_NEAR(after, static_cast<double>(real.latency.quantile(0.99)), 0.1 * after);
  EXPECT_NEAR(predictor.predict(c, 20'000).rate, oracle.predict(slow, 20'000).rate, 0.04 * rate);
  EXPECT_NEAR(predictor.saturation_of(c), oracle.saturation_of(slow), 0.04 * rate);
  predictor.learn(c, {.rate = rate});  // a server that tells nothing teaches nothing
  EXPECT_NEAR(predictor.slowness(c), 1.4, 0.04);
  // Batches that were long after a stall do not make it slower than what it was seen to answer.
  predictor.learn(c, {.rate = rate, .service_ns = 100e6, .throughput = rate});
  EXPECT_NEAR(predictor.saturation_of(c), rate, 0.01 * rate);
  // A load that was too much says what the most is, however short its batches were.
  predictor.learn(c, {.rate = rate, .service_ns = 1e6, .throughput = rate / 2, .keeps_up = false});
  EXPECT_NEAR(predictor.saturation_of(c), rate / 2, 0.01 * rate);
}

TEST(Search, TightGoalsAskForThreadsAndSmallBatches) {
  Setting setting;
  setting.wish.goals = {{0.99, 1'000'000}};  // a row takes 1.25 ms on one thread, 0.63 ms on four
  const Prediction best = setting.run().front();
  EXPECT_TRUE(best.is_feasible);
  EXPECT_GE(best.candidate.layout.threads, 2);
  setting.wish.goals = {{0.99, 500'000}};
  const Prediction nearest = setting.run().front();
  EXPECT_FALSE(nearest.is_feasible);
  EXPECT_EQ(nearest.candidate.layout, (Layout{1, 4}));
  EXPECT_GT(nearest.excess, 1.2);
}

TEST(Search, CostTakesTheFewestCoresThatCarryTheRate) {
  Setting setting;
  setting.wish.objective = Objective::cost;
  setting.wish.price_per = PricePer::core;
  setting.wish.price_per_hour = 0.36;
  setting.wish.rate = 1'000;  // one core does 64 rows in 17 ms: 3,765 a second
  const Prediction best = setting.run().front();
  EXPECT_TRUE(best.is_feasible);
  EXPECT_EQ(best.candidate.layout, (Layout{1, 1}));
  // 0.36 an hour is 1e-4 a second; at 1,000 requests a second a million takes 1,000 s.
  EXPECT_NEAR(best.cost_per_million, 0.1, 0.003);
  // For throughput the rate is what it is: the lowest latency wins.
  Setting fast;
  fast.wish.rate = 100;
  const std::vector<Prediction> list = fast.run();
  for (size_t i = 1; i < list.size() && list[i].is_feasible; ++i)
    EXPECT_LE(list[i - 1].p99_ns, list[i].p99_ns);
  EXPECT_GE(list.front().candidate.layout.threads, 2);
  setting.wish.rate = 9'000;  // needs three
  EXPECT_EQ(setting.run().front().candidate.layout.cores(), 3);
}

TEST(Search, MemoryAndRefusedVariantsAreLeftOut) {
  Setting setting(2);
  EXPECT_EQ(setting.run().front().candidate.variant, 1u);  // half the time
  setting.subject.variants[1].refusal = "too far off";
  for (const Prediction& p : setting.run()) EXPECT_EQ(p.candidate.variant, 0u);
  setting.wish.memory_bytes = int64_t{140} << 20;  // one arena of 64 MiB fits beside weights and process
  const Prediction best = setting.run().front();
  EXPECT_TRUE(best.is_feasible);
  EXPECT_LE(best.memory_bytes, setting.wish.memory_bytes);
}

TEST(Search, ClosedLoopIsJudgedByItsClients) {
  Setting setting;
  setting.wish.clients = 4;
  const Prediction best = setting.run().front();
  EXPECT_TRUE(best.is_feasible);
  EXPECT_NEAR(best.throughput * best.p50_ns * 1e-9, 4, 0.8);  // Little
}

TEST(Search, TheFrontEndTakesCoresThatComputeOnceNoneIsFree) {
  const Setting setting;
  const FrontEnd heavy{.overhead_ns = 2e5, .cpu_ns = 1e5};
  const Predictor with(setting.subject, setting.costs, setting.wish, heavy),
      without(setting.subject, setting.costs, setting.wish, {});
  Candidate full{.layout = {4, 1}, .max_batch = 8, .row_buckets = row_buckets(8, false)};
  Candidate spare = full;
  spare.layout = {3, 1};
  EXPECT_GT(with.at(full, 6'000, 0, 20'000).latency.mean(),
            1.1 * without.at(full, 6'000, 0, 20'000).latency.mean());
  EXPECT_NEAR(with.at(spare, 6'000, 0, 20'000).latency.mean(),
              without.at(spare, 6'000, 0, 20'000).latency.mean() + 2e5, 1e3);
}

TEST(Lists, ShortListAndFront) {
  std::vector<Prediction> list(4);
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].candidate.max_batch = i < 2 ? 8 : 16;
    list[i].candidate.window_ns = static_cast<int64_t>(i);
    list[i].candidate.variant = i == 3 ? 1 : 0;
    list[i].throughput = 100 - 10 * static_cast<double>(i);
    list[i].p99_ns = i == 2 ? 9 : 5 - static_cast<double>(i);
  }
  const auto brief = shortlist(list, 3);
  ASSERT_EQ(brief.size(), 3u);
  EXPECT_EQ(brief[1].candidate.max_batch, 16);
  EXPECT_EQ(brief[2].candidate.variant, 1u);
  const auto front = pareto_front(list);
  ASSERT_EQ(front.size(), 3u);  // the third is worse than the second in both
  EXPECT_EQ(front[0].throughput, 70);
  EXPECT_EQ(front[2].throughput, 100);
}

}  // namespace
}  // namespace trireme::tune
