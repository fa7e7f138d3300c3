// How many guesses are taken, by their chances and by what steps cost.
#include "sched/text/draft_policy.h"

#include <gtest/gtest.h>

namespace trireme::sched {
namespace {

/// Prices as they are after `price` was seen for each number of tokens up to 64.
template <class Price>
StepPrices prices(const Price& price) {
  StepPrices made;
  for (int turn = 0; turn < 3; ++turn) {
    for (const int64_t tokens : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64})
      made.observe(tokens, static_cast<int64_t>(1e6 * price(static_cast<double>(tokens))));
  }
  return made;
}

double flat(double /*tokens*/) { return 1; }
double by_token(double tokens) { return tokens; }
/// Weights that are read once, and a tenth of that for each token.
double usual(double tokens) { return 1 + 0.1 * tokens; }

void learn(DraftPolicy& policy, int64_t text, int64_t drafted, int64_t accepted) {
  for (int i = 0; i < 40; ++i) policy.observe({.request = text, .drafted = drafted, .accepted = accepted});
}

int64_t chosen(DraftPolicy& policy, const StepPrices& prices, int64_t room = 60) {
  DraftPolicy::Candidate one{.text = 1, .most = 8};
  policy.choose({&one, 1}, {.tokens = 1, .draws = 1, .room = room}, &prices);
  return one.chosen;
}

TEST(DraftPolicy, TakesWhatMakesTokensFastest) {
  DraftPolicy good(8);
  learn(good, 1, 8, 8);
  EXPECT_NEAR(good.chance(1), 1, 0.05);
  EXPECT_EQ(chosen(good, prices(flat)), 8);
  EXPECT_EQ(chosen(good, prices(flat), 3), 3);
  EXPECT_EQ(chosen(good, prices(usual)), 7);  // of sizes 8 and 12 the first: a ninth token costs four
  EXPECT_EQ(chosen(good, prices(by_token)), 0);
  DraftPolicy poor(8);
  learn(poor, 1, 8, 0);
  EXPECT_LT(poor.chance(1), 0.1);
  EXPECT_EQ(chosen(poor, prices(usual)), 0);
  DraftPolicy middling(8);
  learn(middling, 1, 2, 1);  // one in two
  const int64_t some = chosen(middling, prices(usual));
  EXPECT_GT(some, 0);
  EXPECT_LT(some, 7);
}

TEST(DraftPolicy, TakesEverythingWhereNobodyMeasures) {
  DraftPolicy policy(5);
  DraftPolicy::Candidate both[] = {{.text = 1, .most = 8}, {.text = 2, .most = 2}};
  policy.choose(both, {.tokens = 2, .draws = 2, .room = 60}, nullptr);
  EXPECT_EQ(both[0].chosen, 5);
  EXPECT_EQ(both[1].chosen, 2);
  policy.choose(both, {.tokens = 2, .draws = 2, .room = 3}, nullptr);
  EXPECT_EQ(both[0].chosen + both[1].chosen, 3);
}

TEST(DraftPolicy, PricesTheGuessingItself) {
  DraftPolicy policy(8);
  learn(policy, 1, 8, 8);
  for (int i = 0; i < 50; ++i) policy.observe_drafting(4, 4 * 50'000);
  EXPECT_GT(chosen(policy, prices(usual)), 3);
  for (int i = 0; i < 50; ++i) policy.observe_drafting(4, 4 * 3'000'000);  // dearer than a token without
  EXPECT_EQ(chosen(policy, prices(usual)), 0);
}

TEST(DraftPolicy, FallsBackWhereTextsAreMany) {
  // Up to 16 tokens cost what one does, further ones their share.
  const StepPrices machine = prices([](double tokens) { return tokens <= 16 ? 1.0 : tokens / 16; });
  DraftPolicy policy(4);
  for (int64_t text = 0; text < 32; ++text) learn(policy, text, 4, 2);
  const auto total = [&](int64_t texts) {
    std::vector<DraftPolicy::Candidate> all;
    for (int64_t text = 0; text < texts; ++text) all.push_back({.text = text, .most = 4});
    policy.choose(all, {.tokens = texts, .draws = texts, .room = 64 - texts}, &machine);
    int64_t sum = 0;
    for (const auto& c : all) sum += c.chosen;
    return sum;
  };
  EXPECT_EQ(total(1), 4);
  EXPECT_EQ(total(4), 12);
  EXPECT_EQ(total(16), 0);
  EXPECT_EQ(total(32), 0);
}

TEST(DraftPolicy, TakesTheLikeliestFirst) {
  DraftPolicy policy(4);
  for (int i = 0; i < 40; ++i) {
    policy.observe({.request = 1, .drafted = 4, .accepted = 4});
    policy.observe({.request = 2, .drafted = 4, .accepted = 1});
  }
  DraftPolicy::Candidate both[] = {{.text = 2, .most = 4}, {.text = 1, .most = 4}};
  const StepPrices free = prices(flat);
  policy.choose(both, {.tokens = 2, .draws = 2, .room = 5}, &free);
  EXPECT_EQ(both[1].chosen, 4);
  EXPECT_EQ(both[0].chosen, 1);
}

TEST(DraftPolicy, TriesAgainEverMoreRarely) {
  DraftPolicy policy(8);
  learn(policy, 1, 4, 0);
  policy.forget(1);  // a new text of a kind that guesses badly
  const StepPrices dear = prices(by_token);
  std::vector<int> tries;
  for (int step = 0; step < 3000; ++step) {
    if (chosen(policy, dear) == 0) continue;
    tries.push_back(step);
    policy.observe({.request = 1, .drafted = 1, .accepted = 0});
  }
  ASSERT_GT(tries.size(), 4u);
  ASSERT_LT(tries.size(), 14u);
  EXPECT_LT(tries[0], 20);
  for (size_t i = 2; i < tries.size(); ++i)
    EXPECT_GE(tries[i] - tries[i - 1], std::min(tries[i - 1] - tries[i - 2], 500));
  // What then goes well is tried soon again.
  policy.observe({.request = 1, .drafted = 1, .accepted = 1});
  int next = 0;
  while (chosen(policy, dear) == 0 && next < 100) ++next;
  EXPECT_LT(next, 20);
}

TEST(DraftPolicy, LearnsThePriceWithoutGuessesFirst) {
  DraftPolicy policy(8);
  StepPrices none;
  EXPECT_EQ(chosen(policy, none), 0);
  none.observe(1, 1000);
  none.observe(1, 1000);
  EXPECT_GT(chosen(policy, none), 0);  // what others cost is to be seen
}

}  // namespace
}  // namespace trireme::sched
