// Tests the histogram against sorted samples, over every magnitude and at the ends of the range.
#include "base/report/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace trireme::base {
namespace {

TEST(Histogram, QuantilesMatchSortedSamples) {
  std::mt19937_64 rng(3);
  for (const double scale : {1.0, 1e3, 1e6, 1e10, 1e17}) {
    std::lognormal_distribution<double> draw(0, 1);
    std::vector<int64_t> samples;
    Histogram h;
    double sum = 0;
    for (int i = 0; i < 5000; ++i) {
      samples.push_back(static_cast<int64_t>(scale * draw(rng)));
      h.record(samples.back());
      sum += static_cast<double>(samples.back());
    }
    std::sort(samples.begin(), samples.end());
    for (const double q : {0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
      const size_t rank = static_cast<size_t>(std::max(1.0, std::ceil(q * 5000))) - 1;
      const double exact = static_cast<double>(samples[rank]);
      const double got = static_cast<double>(h.quantile(q));
      ASSERT_GE(got, exact);
      ASSERT_LE(got, exact * (1 + 1.0 / 512));
    }
    EXPECT_EQ(h.min(), samples.front());
    EXPECT_EQ(h.max(), samples.back());
    EXPECT_DOUBLE_EQ(h.mean(), sum / 5000);
  }
}

TEST(Histogram, BucketsTileTheRange) {
  Histogram h;
  std::vector<int64_t> values = {0, 1, 1023, 1024, 1025, 2047, 2048, INT64_MAX / 2, INT64_MAX - 1, -5};
  for (const int64_t v : values) h.record(v);
  int64_t total = 0;
  int64_t last_high = -1;
  h.for_each_bucket([&](int64_t low, int64_t high, int64_t count) {
    ASSERT_GT(low, last_high);
    ASSERT_LE(low, high);
    const auto inside = [&](int64_t v) { return std::max<int64_t>(v, 0) >= low && v <= high; };
    ASSERT_EQ(std::count_if(values.begin(), values.end(), inside), count);
    last_high = high;
    total += count;
  });
  EXPECT_EQ(total, static_cast<int64_t>(values.size()));
  EXPECT_EQ(h.quantile(1), INT64_MAX - 1);
  EXPECT_EQ(h.count_at_most(0), 2);
  EXPECT_EQ(h.count_at_most(1023), 4);
}

TEST(Histogram, MergeEqualsRecordingAll) {
  std::mt19937 rng(5);
  Histogram all, left, right;
  for (int i = 0; i < 1000; ++i) {
    const int64_t v = rng() % 1000000;
    all.record(v);
    (i % 3 == 0 ? left : right).record(v);
  }
  left.merge(right);
  left.merge(Histogram());
  for (double q = 0; q <= 1; q += 0.01) ASSERT_EQ(left.quantile(q), all.quantile(q));
  EXPECT_EQ(left.count(), all.count());
  EXPECT_EQ(left.min(), all.min());
  EXPECT_EQ(Histogram().quantile(0.5), 0);
}

}  // namespace
}  // namespace trireme::base
