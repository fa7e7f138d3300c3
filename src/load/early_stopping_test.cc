// Early stopping against MLPerf's published counts, a naive binomial, and order statistics.
#include "load/early_stopping.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"

namespace trireme::load {
namespace {

TEST(EarlyStopping, QueryCountsOfTheRules) {
  const std::vector<int64_t> overs = {0, 1, 2, 3, 5, 10, 50, 100};
  const std::vector<std::pair<double, std::vector<int64_t>>> published = {
      {0.90, {44, 64, 81, 97, 127, 197, 681, 1246}},
      {0.95, {90, 130, 165, 198, 259, 398, 1372, 2504}},
      {0.99, {459, 662, 838, 1001, 1307, 2010, 6898, 12571}},
      {0.999, {4603, 6636, 8403, 10042, 13105, 20140, 69058, 125826}},
  };
  for (const auto& [percentile, counts] : published) {
    for (size_t i = 0; i < overs.size(); ++i) {
      EXPECT_EQ(queries_needed(overs[i], percentile), counts[i]) << percentile << " " << overs[i];
      EXPECT_EQ(overs_allowed(counts[i], percentile), overs[i]) << percentile;
      EXPECT_EQ(overs_allowed(counts[i] - 1, percentile), overs[i] - 1) << percentile;
    }
  }
}

TEST(EarlyStopping, BinomialSumsAgreeWithPascalsTriangle) {
  constexpr int kTrials = 40;
  std::vector<double> row = {1};  // distribution of the count after so many trials
  for (int n = 0; n < kTrials; ++n) {
    row.push_back(0);
    for (size_t k = row.size() - 1; k > 0; --k) row[k] = row[k] * 0.7 + row[k - 1] * 0.3;
    row[0] *= 0.7;
  }
  double sum = 0;
  for (int k = 0; k <= kTrials; ++k) {
    sum += row[static_cast<size_t>(k)];
    EXPECT_NEAR(binomial_cdf(k, kTrials, 0.3), sum, 1e-12) << k;
  }
}

TEST(EarlyStopping, EstimateIsTheLatencyThatManyLargerAllow) {
  std::vector<int64_t> latencies;
  for (int64_t i = 1; i <= 197; ++i) latencies.push_back(i * 1000);
  const EarlyStopping ten = early_stopping_estimate(latencies, 0.9);
  EXPECT_TRUE(ten.enough);
  EXPECT_EQ(ten.allowed, 10);
  EXPECT_EQ(ten.estimate_ns, 188'000);  // nine are discarded
  latencies.resize(64);
  EXPECT_EQ(early_stopping_estimate(latencies, 0.9).estimate_ns, 64'000);  // t = 1: the largest
  latencies.resize(63);
  EXPECT_FALSE(early_stopping_estimate(latencies, 0.9).enough);
  EXPECT_FALSE(early_stopping_estimate({}, 0.99).enough);
  EXPECT_EQ(early_stopping_estimate({}, 0.99).needed, 662);
  EXPECT_THROW(queries_needed(1, 1.0), base::Error);
}

}  // namespace
}  // namespace trireme::load
