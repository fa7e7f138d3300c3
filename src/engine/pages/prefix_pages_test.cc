// Known beginnings are found by their tokens and all tokens before them, and are given up from their ends.
#include "engine/pages/prefix_pages.h"

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

TEST(PrefixPages, AreFoundKeptAndGivenUp) {
  const auto cpu = runtime::open_device("cpu");
  KvPool pool(*cpu, {.layers = {{1, 1}}, .page_tokens = 2}, 6);
  {
    PrefixPages prefixes(pool);
    const auto text = [](std::vector<int64_t> v) { return v; };
    const int32_t a = pool.take(), b = pool.take(), c = pool.take();
    const std::vector<int32_t> pages{a, b, c};
    prefixes.keep(text({1, 2, 3, 4, 5}), pages);  // the third is not full
    EXPECT_EQ(pool.holders(a), 2);
    EXPECT_EQ(pool.holders(c), 1);
    EXPECT_EQ(prefixes.find(text({1, 2, 3, 4, 9})), (std::vector<int32_t>{a, b}));
    EXPECT_EQ(prefixes.find(text({1, 2, 3})), (std::vector<int32_t>{a}));
    EXPECT_EQ(prefixes.find(text({3, 4, 1, 2})),
              (std::vector<int32_t>{}));  // a page is known only after its prefix
    const int32_t other = pool.take();
    const std::vector<int32_t> twice{other, c};
    prefixes.keep(text({1, 2, 7, 8}), twice);  // page one is already known, so it is not replaced
    EXPECT_EQ(pool.holders(other), 1);
    EXPECT_EQ(pool.holders(c), 1);
    const std::vector<int32_t> branch{a, c};
    prefixes.keep(text({1, 2, 7, 8}), branch);
    EXPECT_EQ(prefixes.pages(), 3);
    EXPECT_EQ(prefixes.spare(), 0);
    EXPECT_EQ(prefixes.give_up(3), 0);
    for (int32_t page : {a, b, c, other}) pool.release(page);
    EXPECT_EQ(prefixes.spare(), 3);
    prefixes.find(text({1, 2, 3, 4}));
    EXPECT_EQ(prefixes.give_up(1), 1);  // of the two ends, the one that was never requested
    EXPECT_EQ(pool.holders(c), 0);
    EXPECT_EQ(pool.holders(b), 1);
    EXPECT_EQ(prefixes.give_up(5), 2);
    EXPECT_EQ(prefixes.pages(), 0);
    const int32_t last = pool.take();
    prefixes.keep(text({1, 2}), std::vector<int32_t>{last});
    pool.release(last);
    EXPECT_EQ(pool.free_pages(), 5);
  }
  EXPECT_EQ(pool.free_pages(), 6);
}

/// Recomputes the counts that PrefixPages keeps next to its tree.
TEST(PrefixPages, CountsWhatRandomTextsLeave) {
  const auto cpu = runtime::open_device("cpu");
  constexpr int64_t kPages = 24;
  KvPool pool(*cpu, {.layers = {{1, 1}}, .page_tokens = 1}, kPages);
  base::Rng random(7);
  {
    PrefixPages prefixes(pool);
    struct Text {
      std::vector<int64_t> tokens;
      std::vector<int32_t> pages;
    };
    std::vector<Text> open;
    const auto close = [&](size_t i) {
      for (int32_t page : open[i].pages) pool.release(page);
      open.erase(open.begin() + static_cast<int64_t>(i));
    };
    for (int round = 0; round < 3000; ++round) {
      if (open.size() > 3) close(random.below(open.size()));
      Text text;
      for (uint64_t n = 1 + random.below(6); n > 0; --n)
        text.tokens.push_back(static_cast<int64_t>(random.below(3)));
      for (int32_t page : prefixes.find(text.tokens)) {
        pool.share(page);
        text.pages.push_back(page);
      }
      while (text.pages.size() < text.tokens.size()) {
        if (pool.free_pages() == 0 && prefixes.give_up(1) == 0) break;
        text.pages.push_back(pool.take());
      }
      prefixes.keep(std::span(text.tokens).first(text.pages.size()), text.pages);
      open.push_back(std::move(text));
      // Every page is free, held by a text, or unused in the tree.
      std::set<int32_t> held;
      for (const Text& t : open) held.insert(t.pages.begin(), t.pages.end());
      ASSERT_EQ(pool.free_pages() + prefixes.spare() + static_cast<int64_t>(held.size()), kPages);
    }
    while (!open.empty()) close(0);
    EXPECT_EQ(prefixes.spare(), prefixes.pages());
    const int64_t known = prefixes.pages();
    EXPECT_GT(known, 0);
    EXPECT_EQ(prefixes.give_up(known + 1), known);
    EXPECT_EQ(pool.free_pages(), kPages);
  }
}

}  // namespace
}  // namespace trireme::engine
