// Tests kept responses: their owners, limits of number and time, and how conversations are built.
#include "serve/openai/kept_responses.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::serve {
namespace {

struct KeptResponsesTest : testing::Test {
  base::FakeClock clock;
};

KeptResponse response_of(size_t bytes) { return {.response = std::string(bytes, 'r'), .input = "[]"}; }

bool has(KeptResponses& kept, const std::string& id, const std::string& tenant) {
  try {
    return kept.find(id, tenant) != nullptr;
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::not_found);
    return false;
  }
}

TEST_F(KeptResponsesTest, AreOfOneTenantAndForATime) {
  KeptResponses kept({.responses = 10, .bytes = 1 << 20, .ns = 100}, clock);
  kept.add("a", "one",
           {.response = R"({"output":[{"type":"message","id":"m"}]})", .input = R"([{"id":"q"}])"});
  EXPECT_TRUE(has(kept, "a", "one"));
  EXPECT_FALSE(has(kept, "a", "two"));
  EXPECT_FALSE(has(kept, "b", "one"));
  EXPECT_THROW(kept.remove("a", "two"), base::Error);
  EXPECT_EQ(kept.conversation("a", "one").dump(), R"([{"id":"q"},{"type":"message","id":"m"}])");
  clock.advance(99);
  EXPECT_TRUE(has(kept, "a", "one"));
  clock.advance(1);
  EXPECT_FALSE(has(kept, "a", "one"));
  EXPECT_EQ(kept.bytes(), 0);
  kept.add("a", "two", response_of(5));
  kept.add("a", "one", response_of(5));  // the first one with the id stays
  EXPECT_TRUE(has(kept, "a", "two"));
  kept.remove("a", "two");
  EXPECT_EQ(kept.size(), 0U);
  EXPECT_FALSE(has(kept, "a", "two"));
}

/// Compared with a list that is searched: the tenant that uses most loses its oldest response.
TEST_F(KeptResponsesTest, AreBoundedWithoutDrivingOthersOut) {
  constexpr int64_t kMost = 20000;
  KeptResponses kept({.responses = 30, .bytes = kMost, .ns = INT64_MAX / 2}, clock);
  struct Known {
    std::string id, tenant;
    int64_t bytes;
  };
  std::deque<Known> known;  // by age
  base::Rng random(3);
  for (int i = 0; i < 2000; ++i) {
    // One tenant sends far more requests than the others.
    const std::string tenant = random.below(10) < 8 ? "loud" : random.below(2) == 0 ? "b" : "c";
    const size_t size = random.below(200) == 0 ? kMost : random.below(1500);
    const std::string id = std::to_string(i);
    const int64_t before = kept.bytes();
    kept.add(id, tenant, response_of(size));
    if (static_cast<int64_t>(size) >= kMost) {
      ASSERT_EQ(kept.bytes(), before);
      continue;
    }
    const auto bytes = static_cast<int64_t>(size) + 2 + 512;
    const auto sum = [&](const std::string& of) {
      int64_t all = 0;
      for (const Known& k : known) all += of.empty() || k.tenant == of ? k.bytes : 0;
      return all;
    };
    while (!known.empty() && (sum("") + bytes > kMost || known.size() >= 30)) {
      std::string most = "b";
      for (const std::string other : {"c", "loud"}) most = sum(other) > sum(most) ? other : most;
      known.erase(std::find_if(known.begin(), known.end(), [&](const Known& k) { return k.tenant == most; }));
    }
    known.push_back({id, tenant, bytes});
    ASSERT_EQ(kept.bytes(), sum("")) << i;
    ASSERT_EQ(kept.size(), known.size());
    for (const Known& k : known) ASSERT_TRUE(has(kept, k.id, k.tenant)) << i;
    if (i > 200) {
      ASSERT_GT(sum("b") + sum("c"), 0) << i;
    }
  }
}

TEST_F(KeptResponsesTest, MayBeOff) {
  KeptResponses kept({}, clock);
  EXPECT_FALSE(kept.is_on());
  kept.add("a", "", response_of(1));
  EXPECT_EQ(kept.size(), 0U);
}

}  // namespace
}  // namespace trireme::serve
