// Drafts by prompt lookup, compared with a search that compares all tokens.
#include "engine/decode/prompt_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"

namespace trireme::engine {
namespace {

/// Among the 16 latest earlier occurrences of the last `least` tokens: the one with the longest run of equal
/// tokens before it, up to 64.
int64_t latest_longest(const std::vector<int64_t>& text, int64_t least) {
  const auto size = static_cast<int64_t>(text.size());
  const auto at = [&](int64_t i) { return text[static_cast<size_t>(i)]; };
  int64_t best = -1, longest = 0, seen = 0;
  for (int64_t place = size - 2; place >= least - 1 && seen < 16; --place) {
    int64_t alike = 0;
    while (alike < 64 && alike <= place && at(place - alike) == at(size - 1 - alike)) ++alike;
    seen += alike >= least ? 1 : 0;
    if (alike >= least && alike > longest) {
      longest = alike;
      best = place;
    }
  }
  return best;
}

TEST(RepeatIndex, FindsThePlaceThatIsMostAlike) {
  std::mt19937 random(5);
  size_t found = 0;
  for (const int64_t least : {1, 2, 3, 5}) {
    for (const uint32_t letters : {2u, 4u, 30u}) {
      RepeatIndex index(least);
      std::vector<int64_t> text;
      for (int i = 0; i < 300; ++i) {
        text.push_back(static_cast<int64_t>(random() % letters));
        if (random() % 20 == 0 && text.size() > 12) {  // repeats an earlier passage
          const size_t from = random() % (text.size() - 10);
          for (size_t j = 0; j < 10; ++j) text.push_back(text[from + j]);
        }
        index.extend(text, text.size());
        ASSERT_EQ(index.size(), text.size());
        const int64_t place = index.find(text);
        ASSERT_EQ(place, latest_longest(text, least)) << least << " of " << letters << ", " << text.size();
        found += place >= 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(found, 2000u);
}

TEST(RepeatIndex, TakesInSoManyTokensAtATime) {
  RepeatIndex index(2);
  const std::vector<int64_t> text{1, 2, 3, 1, 2};
  index.extend(text, 3);
  EXPECT_EQ(index.size(), 3u);
  index.extend(text, 0);
  EXPECT_EQ(index.size(), 3u);
  EXPECT_THROW(index.find(text), base::Error);
  index.extend(text, 9);
  EXPECT_EQ(index.find(text), 1);
  EXPECT_THROW(index.extend(std::span(text).first(2), 9), base::Error);
}

std::vector<int64_t> drafts(PromptLookup& lookup, const std::vector<int64_t>& text, int64_t most,
                            int64_t number = 0) {
  std::vector<int64_t> drafts;
  const DraftWish wish{.text = number, .tokens = text, .most = most, .drafts = &drafts};
  lookup.draft({&wish, 1});
  return drafts;
}

TEST(PromptLookup, DraftsWhatFollowed) {
  PromptLookup lookup(2);
  using List = std::vector<int64_t>;
  EXPECT_EQ(drafts(lookup, {7}, 4), List());
  EXPECT_EQ(drafts(lookup, {7, 8, 9, 5, 6, 7}, 4), List());
  EXPECT_EQ(drafts(lookup, {7, 8, 9, 5, 6, 7, 8}, 3), (List{9, 5, 6}));
  EXPECT_EQ(drafts(lookup, {7, 8, 9, 5, 6, 7, 8}, 7), (List{9, 5, 6, 7, 8, 9, 5}));  // and from the start
  EXPECT_EQ(drafts(lookup, {1, 1, 1}, 3, 1), (List{1, 1, 1}));
  EXPECT_EQ(drafts(lookup, {7, 8}, 4, 2), List());  // texts are separate
  lookup.forget(0);
  EXPECT_EQ(drafts(lookup, {7, 8}, 4), List());
  EXPECT_THROW(PromptLookup(0), base::Error);
}

TEST(PromptLookup, ReadsALongPromptOverSeveralSteps) {
  PromptLookup lookup(2);
  std::vector<int64_t> text(9000);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int64_t>(i % 4500);
  EXPECT_TRUE(drafts(lookup, text, 2).empty());
  EXPECT_TRUE(drafts(lookup, text, 2).empty());
  EXPECT_EQ(drafts(lookup, text, 2), (std::vector<int64_t>{0, 1}));
}

}  // namespace
}  // namespace trireme::engine
