// Comparisons: intervals of differences, false alarms counted, verdicts, notes, refusals.
#include "load/report/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::load {
namespace {

base::Json run(int64_t concurrency, double throughput, double p99_ns, double width) {
  base::Json latency;
  for (const char* name : {"p50", "p90", "p95", "p99", "p99.9"}) {
    latency.set(name, p99_ns);
    latency.set(std::string(name) + "_95", base::Json::array({p99_ns * (1 - width), p99_ns * (1 + width)}));
  }
  return base::Json::object(
      {{"label", "c=" + std::to_string(concurrency)},
       {"throughput", throughput},
       {"throughput_95", base::Json::array({throughput * (1 - width), throughput * (1 + width)})},
       {"succeeded", 10'000},
       {"failed", 0},
       {"latency_ns", latency}});
}

base::Json test(std::initializer_list<base::Json> runs, int64_t batch = 1) {
  return base::Json::object(
      {{"options", base::Json::object({{"batch", batch}, {"json", "a" + std::to_string(batch)}})},
       {"runs", base::Json::array(runs)}});
}

const Difference& at(const Comparison& c, const std::string& figure) {
  for (const Difference& d : c.differences)
    if (d.figure == figure) return d;
  throw std::out_of_range(figure);
}

TEST(Compare, IntervalsOfDifferences) {
  const Bounds b = difference_bounds({100, {97, 104}}, {110, {106, 113}});
  EXPECT_DOUBLE_EQ(b.low, 10 - std::hypot(4, 4));
  EXPECT_DOUBLE_EQ(b.high, 10 + std::hypot(3, 3));
  // Wilson's interval, by its table: 0 of 10, 5 of 10.
  EXPECT_NEAR(share_bounds(0, 10).high, 0.2775, 1e-4);
  EXPECT_NEAR(share_bounds(5, 10).low, 0.2366, 1e-4);
  EXPECT_NEAR(share_bounds(5, 10).high, 0.7634, 1e-4);
}

// Two measurements of the same thing differ "surely" in about one of twenty comparisons.
TEST(Compare, FalseAlarmsAreAsRareAsPromised) {
  constexpr int kTrials = 20'000;
  int alarms = 0;
  for (uint64_t i = 0; i < kTrials; ++i) {
    const base::PhiloxBlock a = base::philox_block(1, 0, i), b = base::philox_block(2, 0, i);
    const auto normal = [](const base::PhiloxBlock& w) {
      return std::sqrt(-2 * std::log(1 - base::uniform_f64(w[0], w[1]))) *
             std::cos(2 * M_PI * base::uniform_f64(w[2], w[3]));
    };
    const double x = 100 + normal(a), y = 100 + 2 * normal(b);
    const Bounds d = difference_bounds({x, {x - 1.96, x + 1.96}}, {y, {y - 3.92, y + 3.92}});
    alarms += d.low > 0 || d.high < 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(alarms) / kTrials, 0.05, 0.006);
}

TEST(Compare, VerdictsByDirectionAndNoise) {
  const Comparison faster = compare(test({run(1, 100, 1e6, 0.02)}), test({run(1, 110, 0.9e6, 0.02)}));
  EXPECT_EQ(at(faster, "throughput").verdict, Verdict::better);
  EXPECT_EQ(at(faster, "p99").verdict, Verdict::better);
  EXPECT_NEAR(at(faster, "p99").change, -10, 1e-9);
  EXPECT_EQ(at(faster, "failed").verdict, Verdict::same);
  EXPECT_TRUE(within(faster, 0));
  const Comparison noisy = compare(test({run(1, 100, 1e6, 0.2)}), test({run(1, 110, 0.9e6, 0.2)}));
  EXPECT_EQ(at(noisy, "throughput").verdict, Verdict::same);
  const Comparison slower = compare(test({run(1, 100, 1e6, 0.02)}), test({run(1, 80, 1e6, 0.02)}));
  EXPECT_EQ(at(slower, "throughput").verdict, Verdict::worse);
  EXPECT_TRUE(within(slower, 20));
  EXPECT_FALSE(within(slower, 10));  // surely more than 10 %: 20 - hypot(2, 1.6) = 17.4
  EXPECT_TRUE(within(slower, 17.5));
  const Comparison unknown = compare(test({run(1, 100, 1e6, 0)}), test({run(1, 80, 1e6, 0)}));
  EXPECT_EQ(at(unknown, "throughput").verdict, Verdict::unknown);
  EXPECT_NE(comparison_text(slower).find("WORSE"), std::string::npos);
  EXPECT_EQ(comparison_json(slower).at("differences").at(0).at("verdict").as_string(), "worse");
}

TEST(Compare, FailuresAndVerdictsCount) {
  base::Json good = run(1, 100, 1e6, 0.02), bad = good;
  good.set("scenario", base::Json::object({{"valid", true}}));
  bad.set("scenario", base::Json::object({{"valid", false}}));
  bad.set("failed", 500);
  const Comparison c = compare(test({good}), test({bad}));
  EXPECT_EQ(at(c, "failed").verdict, Verdict::worse);
  EXPECT_NEAR(at(c, "failed").change, 100.0 * 500 / 10'500, 1e-9);
  EXPECT_TRUE(c.turned_invalid);
  EXPECT_FALSE(within(c, 100));
}

TEST(Compare, NotesAndRefusals) {
  const Comparison c = compare(test({run(1, 100, 1e6, 0.02), run(2, 100, 1e6, 0.02)}),
                               test({run(2, 100, 1e6, 0.02), run(4, 100, 1e6, 0.02)}, 8));
  EXPECT_EQ(c.differences.size(), 7u);
  EXPECT_EQ(c.notes, (std::vector<std::string>{"options differ: batch 1 -> 8", "only before: c=1",
                                               "only after: c=4"}));
  EXPECT_THROW(compare(test({run(1, 1, 1, 0)}), test({run(2, 1, 1, 0)})), base::Error);
  EXPECT_THROW(compare(base::parse_json("[]"), test({})), base::Error);
  EXPECT_THROW(compare(base::parse_json("{\"runs\": []}"), test({})), base::Error);
}

}  // namespace
}  // namespace trireme::load
