// The search for a configuration of texts over servers that are formulas.
#include "tune/text_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"

namespace trireme::tune {
namespace {

/// A server that carries so many requests a second, and counts how often it is loaded.
class Formula {
 public:
  explicit Formula(std::function<double(const TextCandidate&)> carries) : carries_(std::move(carries)) {}

  TextMeasurement operator()(const TextCandidate& c, double rate) {
    ++loads;
    const double most = carries_(c);
    if (std::isnan(most)) base::fail(base::ErrorCode::unavailable, "it does not fit");
    TextMeasurement m{.rate = rate, .throughput = rate > 0 ? std::min(rate, most) : most / 4};
    m.miss = most > 0 ? rate / most : 1 + 100.0 / static_cast<double>(c.chunk);
    m.holds = most > 0 && rate <= most;
    return m;
  }
  int loads = 0;

 private:
  std::function<double(const TextCandidate&)> carries_;
};

TextSearch search_of(Formula& server, TextSpace space = {}) {
  TextSearch search(std::move(space),
                    [&server](const TextCandidate& c, double rate) { return server(c, rate); });
  search.run();
  return search;
}

double peak(int64_t value, int64_t at) { return 1 / (1 + std::abs(std::log2(double(value) / double(at)))); }

TEST(TextSearch, FindsWhatCarriesMostWithFewLoads) {
  for (const auto& [chunk, sequences] : {std::pair<int64_t, int64_t>{512, 64}, {128, 32}, {1024, 16}}) {
    Formula server([&](const TextCandidate& c) {
      return 20 * peak(c.chunk, chunk) * peak(c.sequences, sequences) * (c.cache_type == "bf16" ? 1.3 : 1);
    });
    const TextSearch search = search_of(server);
    ASSERT_TRUE(search.is_reached());
    const TextTrial& best = search.trials()[search.best()];
    EXPECT_EQ(best.candidate.chunk, chunk);
    EXPECT_EQ(best.candidate.sequences, sequences);
    EXPECT_EQ(best.candidate.cache_type, "bf16");
    EXPECT_GT(best.rate * TextSearch::kGain, 26);
    EXPECT_LE(best.rate, 26);
    EXPECT_LT(server.loads, 60);
    std::set<std::string> seen;
    for (const TextTrial& t : search.trials())
      EXPECT_TRUE(seen.insert(t.candidate.id()).second) << "tried twice";
  }
}

TEST(TextSearch, WhatIsNotBetterCostsOneLoadAndIsNotKept) {
  Formula server([](const TextCandidate& c) { return c.chunk == 512 ? 10.0 : 10.2; });  // within the noise
  const TextSearch search = search_of(server);
  EXPECT_EQ(search.best(), 0u);
  for (size_t i = 1; i < search.trials().size(); ++i) EXPECT_EQ(search.trials()[i].runs.size(), 1u);
}

TEST(TextSearch, WhatDoesNotStartIsToldAndPassedOver) {
  Formula server([](const TextCandidate& c) {
    return c.weights == "q4_0" ? std::numeric_limits<double>::quiet_NaN() : c.weights == "q8_0" ? 30.0 : 10.0;
  });
  const TextSearch search = search_of(server, {.weights = {"", "q4_0", "q8_0"}});
  EXPECT_EQ(search.trials()[search.best()].candidate.weights, "q8_0");
  EXPECT_EQ(search.trials()[1].failure, "it does not fit");
}

TEST(TextSearch, WhereNoGoalIsMetTheNearestIsGiven) {
  Formula server([](const TextCandidate&) { return 0.0; });
  const TextSearch search = search_of(server);
  EXPECT_FALSE(search.is_reached());
  EXPECT_EQ(search.trials()[search.best()].candidate.chunk, 1024) << "the formula misses by least there";
}

TEST(TextSearch, FlagsAreThoseOfTheServer) {
  const TextCandidate c{.weights = "q8_0", .cache_type = "bf16", .sequences = 16, .chunk = 256};
  EXPECT_EQ(c.id(), "q8_0 bf16 s16 c256");
  EXPECT_EQ(c.flags(), (std::vector<std::string>{"--cache-type", "bf16", "--max-sequences", "16", "--chunk",
                                                 "256", "--weights", "q8_0"}));
}

}  // namespace
}  // namespace trireme::tune
