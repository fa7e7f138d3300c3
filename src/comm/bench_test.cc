// Tests the benchmark's arithmetic: the factors of nccl-tests, and that the fit recovers a given line.
#include "comm/bench.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/local.h"

namespace trireme::comm {
namespace {

TEST(CommBench, BusFactorsOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_gather, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_to_all, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::broadcast, 8), 1);
}

TEST(CommBench, FitFindsLatencyAndBandwidth) {
  std::vector<BenchPoint> points;
  for (int64_t bytes = 1024; bytes <= 1 << 26; bytes *= 4) {
    points.push_back({.bytes = bytes, .seconds = 3e-6 + static_cast<double>(bytes) / 8e9});
  }
  const BenchFit f = fit(points);
  EXPECT_NEAR(f.latency_s, 3e-6, 1e-9);
  EXPECT_NEAR(f.bytes_per_s, 8e9, 1e6);
}

TEST(CommBench, FitHasNoNegativeLatency) {
  // The small size is faster than the line, as caches make it.
  const std::vector<BenchPoint> points{{.bytes = 1000, .seconds = 1e-6}, {.bytes = 1000000, .seconds = 4e-3}};
  const BenchFit f = fit(points);
  EXPECT_EQ(f.latency_s, 0);
  EXPECT_GT(f.bytes_per_s, 1e6 / 4e-3);
  EXPECT_LT(f.bytes_per_s, 1e3 / 1e-6);
}

TEST(CommBench, SizesEndAndDifferFromEachOther) {
  const auto sizes = [](int64_t min, int64_t max) {
    return bench_sizes({.min_bytes = min, .max_bytes = max}, 3);
  };
  EXPECT_EQ(sizes(1, 100), (std::vector<int64_t>{192}));  // a cache line for each rank is the least
  EXPECT_EQ(sizes(1, 1000), (std::vector<int64_t>{192, 384}));
  EXPECT_EQ(sizes(1000, 5000), (std::vector<int64_t>{1152, 4032}));
  EXPECT_EQ(sizes(1000, 4000), (std::vector<int64_t>{1152, 3840}));  // 4,032 bytes are above it
  EXPECT_EQ(sizes(1, kMostBenchBytes).size(), 18u);
  EXPECT_THROW(sizes(0, 100), base::Error);
  EXPECT_THROW(sizes(INT64_MIN, 100), base::Error);
  EXPECT_THROW(sizes(200, 100), base::Error);
  EXPECT_THROW(sizes(1, INT64_MAX), base::Error);
}

TEST(CommBench, MeasuresEverySize) {
  for (const Collective what : {Collective::all_reduce, Collective::all_to_all, Collective::all_gather}) {
    LocalWorld(3).run([&](Communicator& c) {
      const BenchSpec spec{.what = what, .min_bytes = 1000, .max_bytes = 16000, .min_ns = 1'000'000};
      const std::vector<BenchPoint> points = run_bench(c, spec);
      ASSERT_EQ(points.size(), 3u);
      EXPECT_EQ(points[0].bytes, 1152);  // whole cache lines for each of three ranks
      for (const BenchPoint& p : points) EXPECT_TRUE(p.seconds > 0 && p.copy_gb_s > 0);
    });
  }
}

}  // namespace
}  // namespace trireme::comm
