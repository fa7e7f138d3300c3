// Tests the metric registry: Prometheus text form, identity of series, concurrent use.
#include "serve/seeing/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "serve/seeing/metric_summary.h"

namespace trireme::serve {
namespace {

TEST(Metrics, ExposesEveryKind) {
  MetricRegistry registry;
  registry.counter("requests_total", "Requests \\ all\nof them", {{"model", "a\"b\\c\nd"}, {"version", "1"}})
      .add(3);
  registry.gauge("depth", "Queue depth").set(-1.5);
  MetricHistogram& h = registry.histogram("latency_seconds", "Latency", {0.001, 0.01}, {{"m", "x"}});
  for (const double v : {0.0005, 0.001, 0.002, 5.0}) h.observe(v);
  registry.gauge_from("read", "Read when scraped", {}, [] { return 1e7; });
  EXPECT_EQ(registry.expose(),
            "# HELP requests_total Requests \\\\ all\\nof them\n"
            "# TYPE requests_total counter\n"
            "requests_total{model=\"a\\\"b\\\\c\\nd\",version=\"1\"} 3\n"
            "# HELP depth Queue depth\n"
            "# TYPE depth gauge\n"
            "depth -1.5\n"
            "# HELP latency_seconds Latency\n"
            "# TYPE latency_seconds histogram\n"
            "latency_seconds_bucket{m=\"x\",le=\"0.001\"} 2\n"
            "latency_seconds_bucket{m=\"x\",le=\"0.01\"} 3\n"
            "latency_seconds_bucket{m=\"x\",le=\"+Inf\"} 4\n"
            "latency_seconds_sum{m=\"x\"} 5.0035\n"
            "latency_seconds_count{m=\"x\"} 4\n"
            "# HELP read Read when scraped\n"
            "# TYPE read gauge\n"
            "read 1e+07\n");
}

TEST(Metrics, SameNameAndLabelsAreOneSeries) {
  MetricRegistry registry;
  MetricCounter& a = registry.counter("c_total", "C", {{"m", "1"}});
  EXPECT_EQ(&a, &registry.counter("c_total", "C", {{"m", "1"}}));
  EXPECT_NE(&a, &registry.counter("c_total", "C", {{"m", "2"}}));
  EXPECT_THROW(registry.gauge("c_total", "C"), base::Error);
  EXPECT_THROW(registry.counter("1st", "bad name"), base::Error);
  EXPECT_THROW(registry.counter("ok", "bad label", {{"a:b", ""}}), base::Error);
  EXPECT_THROW(registry.histogram("h", "bounds", {2, 1}), base::Error);
}

TEST(Metrics, HiddenSeriesKeepTheirCounts) {
  MetricRegistry registry;
  registry.counter("c_total", "C", {{"model", "a"}, {"version", "1"}}).add(7);
  registry.counter("c_total", "C", {{"model", "a"}, {"version", "2"}}).add(8);
  registry.counter("c_total", "C", {{"model", "here"}, {"version", "1"}}).add(1);
  registry.show_only({"model", "a"}, "version", {"2"});
  EXPECT_EQ(registry.expose().find("} 7\n"), std::string::npos);
  EXPECT_NE(registry.expose().find("} 8\n"), std::string::npos);
  registry.show_only({"model", "a"}, "version", {});
  EXPECT_EQ(registry.expose().find("} 8\n"), std::string::npos);
  EXPECT_NE(registry.expose().find("here"), std::string::npos);
  registry.show_only({"model", "a"}, "version", {"1", "2"});
  EXPECT_NE(registry.expose().find("c_total{model=\"a\",version=\"1\"} 7\n"), std::string::npos);
}

TEST(Metrics, WhatHasNoValueWhenScrapedIsNotShown) {
  MetricRegistry registry;
  double value = NAN;
  registry.gauge_from("read", "Read when scraped", {{"i", "0"}}, [&] { return value; });
  EXPECT_EQ(registry.expose(), "# HELP read Read when scraped\n# TYPE read gauge\n");
  value = 2;
  EXPECT_NE(registry.expose().find("read{i=\"0\"} 2\n"), std::string::npos);
}

TEST(Metrics, ThreadsRegisterAndCountWhileOthersScrape) {
  MetricRegistry registry;
  constexpr int kThreads = 8, kRounds = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        registry.counter("c_total", "C", {{"i", std::to_string(i % 50)}}).add();
        registry.histogram("h", "H", {1, 2}).observe(1);
        if (i % 500 == 0) registry.expose();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  uint64_t total = 0;
  for (int i = 0; i < 50; ++i) total += registry.counter("c_total", "C", {{"i", std::to_string(i)}}).value();
  EXPECT_EQ(total, uint64_t{kThreads} * kRounds);
  EXPECT_EQ(registry.histogram("h", "H", {1, 2}).count(), uint64_t{kThreads} * kRounds);
  EXPECT_EQ(registry.histogram("h", "H", {1, 2}).sum(), double{kThreads} * kRounds);
}

TEST(Metrics, BucketsGrowAndReadWell) {
  const std::vector<double> bounds = metric_buckets(0.0001, 2, 6);
  EXPECT_EQ(bounds, (std::vector<double>{0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032}));
}

TEST(Metrics, QuantilesAreInterpolatedWithinTheirBucket) {
  const std::vector<double> bounds{1, 2, 4};
  EXPECT_TRUE(std::isnan(bucket_quantile(bounds, {0, 0, 0, 0}, 0.5)));
  EXPECT_DOUBLE_EQ(bucket_quantile(bounds, {4, 0, 0, 0}, 0.5), 0.5);
  EXPECT_DOUBLE_EQ(bucket_quantile(bounds, {2, 2, 0, 0}, 0.75), 1.5);
  EXPECT_DOUBLE_EQ(bucket_quantile(bounds, {0, 0, 10, 0}, 0.9), 3.8);
  EXPECT_DOUBLE_EQ(bucket_quantile(bounds, {0, 0, 1, 9}, 0.9), 4);  // above all bounds
}

TEST(Metrics, SummariesLookBackAMinute) {
  base::FakeClock clock(1);
  MetricRegistry registry;
  MetricHistogram& h = registry.histogram("h_seconds", "H.", {0.001, 0.002, 0.004});
  registry.summary_of("s_us", "S.", {{"m", "a"}}, {h, 1e6, clock});
  const auto median = [&] {
    const std::string text = registry.expose(), key = "s_us{m=\"a\",quantile=\"0.5\"} ";
    return text.substr(text.find(key) + key.size(),
                       text.find('\n', text.find(key)) - text.find(key) - key.size());
  };
  EXPECT_EQ(median(), "NaN");
  for (int i = 0; i < 10; ++i) h.observe(0.0005);
  EXPECT_EQ(median(), "500");
  clock.advance(30 * base::kNsPerSecond);
  for (int i = 0; i < 10; ++i) h.observe(0.003);
  EXPECT_EQ(median(), "1000");  // half of them below 1 ms
  for (int i = 0; i < 5; ++i) h.observe(0.003);
  clock.advance(61 * base::kNsPerSecond);
  EXPECT_EQ(median(), "3000");  // the five since the start of the window
  clock.advance(61 * base::kNsPerSecond);
  EXPECT_EQ(median(), "NaN");  // no new observations
  EXPECT_NE(registry.expose().find("s_us_count{m=\"a\"} 25\n"), std::string::npos);
  EXPECT_NE(registry.expose().find("# TYPE s_us summary\n"), std::string::npos);
}

TEST(Metrics, ALabelThatIsNotUtf8DoesNotSpoilTheScrape) {
  MetricRegistry registry;
  registry.counter("c_total", "h", {{"model", "a\xFF\"\\\n\xC3\xA9\xC3"}}).add(3);
  EXPECT_NE(registry.expose().find("c_total{model=\"a\xEF\xBF\xBD\\\"\\\\\\n\xC3\xA9\xEF\xBF\xBD\"} 3\n"),
            std::string::npos)
      << registry.expose();
}

TEST(Metrics, EveryValueFallsIntoItsBucket) {
  const std::vector<std::vector<double>> kinds = {metric_buckets(1e-6, 1.2589254, 73),
                                                  {1, 2, 3, 100},
                                                  {0, 1},
                                                  {-2, 5},
                                                  metric_buckets(1, 2, 17),
                                                  {0.001}};
  for (const std::vector<double>& bounds : kinds) {
    std::vector<double> values{0, -1, 1e-300, 1e300, 0.5, INFINITY};
    for (const double b : bounds) {
      for (const double v : {b, std::nextafter(b, -INFINITY), std::nextafter(b, INFINITY), b * 1.1, b * 0.7})
        values.push_back(v);
    }
    for (const double v : values) {
      MetricHistogram h(bounds);
      h.observe(v);
      const auto want = std::lower_bound(bounds.begin(), bounds.end(), v) - bounds.begin();
      EXPECT_EQ(h.in_bucket(static_cast<size_t>(want)), 1u) << v << " among " << bounds.size();
    }
  }
}

}  // namespace
}  // namespace trireme::serve
