// Tests tenants: names, secrets, weights, the limit on unlisted ones, and labels that reveal no secret.
#include "serve/access/tenants.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

#include "base/error.h"

namespace trireme::serve {
namespace {

TEST(Tenants, AreFoundByNameOrSecret) {
  MetricRegistry registry;
  Tenants named("parameter", {"gold=4", "silver=2"}, 2, registry);
  EXPECT_EQ(named.find("gold").weight, 4);
  EXPECT_NE(named.find("gold").number, named.find("silver").number);
  EXPECT_EQ(named.find("new").weight, 1);
  EXPECT_EQ(named.find("new").number, named.find("new").number);
  Tenants keyed("header:X-API-Key", {"gold=4:s3cret"}, 2, registry);
  EXPECT_EQ(keyed.header(), "x-api-key");
  EXPECT_EQ(keyed.find("s3cret").weight, 4);
  EXPECT_EQ(keyed.find("gold").weight, 1);  // its name is not a key
}

TEST(Tenants, MadeUpNamesGetNoFurtherShares) {
  MetricRegistry registry;
  Tenants tenants("parameter", {}, 8, registry);
  std::map<uint32_t, int> numbers;
  for (int i = 0; i < 1000; ++i) ++numbers[tenants.find("t" + std::to_string(i)).number];
  EXPECT_EQ(numbers.size(), 9u);
}

TEST(Tenants, LabelsHoldNoSecret) {
  MetricRegistry registry;
  Tenants tenants("header:authorization", {"gold=1:s3cret"}, 8, registry);
  tenants.find("s3cret");
  tenants.find("another-secret");
  const Tenant nobody = tenants.find("");
  tenants.count(nobody.number, {.started_ns = 5, .finished_ns = 25, .batch_rows = 4, .own_rows = 1},
                sched::Ending::done, 30);
  const std::string text = registry.expose();
  EXPECT_EQ(text.find("secret"), std::string::npos);
  EXPECT_NE(text.find("tenant=\"gold\""), std::string::npos);
  EXPECT_NE(text.find("trireme_tenant_requests_total{tenant=\"none\",result=\"done\"} 1"), std::string::npos);
}

TEST(Tenants, OwnersHoldNoSecret) {
  MetricRegistry registry;
  Tenants tenants("header:authorization", {"gold=4:s3cret"}, 8, registry);
  EXPECT_EQ(tenants.owner_of(""), "");
  // `printf s3cret | sha256sum`
  const std::string owner = tenants.owner_of("s3cret");
  EXPECT_EQ(owner, "\x01sha256:1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0");
  EXPECT_TRUE(Tenants::is_owner(owner, owner));
  EXPECT_TRUE(Tenants::is_owner(owner, "s3cret")) << "as an older server stored it";
  for (const char* stored : {"", "gold", "s3cret "}) EXPECT_FALSE(Tenants::is_owner(owner, stored)) << stored;
  EXPECT_FALSE(Tenants::is_owner("s3cret", owner)) << "a tenant of that name";
  EXPECT_FALSE(Tenants::is_owner(tenants.owner_of(owner), owner)) << "the hash is no key";
  EXPECT_TRUE(Tenants::is_owner("", ""));
  // What a batch asks has its owner's share.
  EXPECT_EQ(tenants.find(owner).number, tenants.find("s3cret").number);
  EXPECT_EQ(tenants.find(owner).weight, 4);
  const uint32_t stored_first = tenants.find(tenants.owner_of("made-up")).number;
  EXPECT_EQ(tenants.find("made-up").number, stored_first);
  const uint32_t shown_first = tenants.find("another").number;
  EXPECT_EQ(tenants.find(tenants.owner_of("another")).number, shown_first);
  EXPECT_NE(shown_first, stored_first);
}

// Labels come from clients: requests with equal labels share one count, and no label breaks the scrape.
TEST(Tenants, WordsWithOneLabelAreCountedTogether) {
  MetricRegistry registry;
  Tenants tenants("parameter", {"gold=2:s3cret"}, 8, registry);
  const sched::Timing timing{.started_ns = 5, .finished_ns = 25, .batch_rows = 4, .own_rows = 1};
  const std::string cut = "a" + std::string(63, 'x');
  for (const std::string& word :
       {std::string("s3cret"), std::string("gold"), std::string("none"), std::string(), cut + "1", cut + "2"})
    tenants.count(tenants.find(word).number, timing, sched::Ending::done, 30);
  std::string accents = "a";
  for (int i = 0; i < 40; ++i) accents += "\xC3\xA9";
  tenants.count(tenants.find(accents).number, timing, sched::Ending::done, 30);
  const std::string text = registry.expose();
  for (const std::string& label : {std::string("gold"), std::string("none"), cut})
    EXPECT_NE(text.find("trireme_tenant_requests_total{tenant=\"" + label + "\",result=\"done\"} 2\n"),
              std::string::npos)
        << label;
  EXPECT_TRUE(base::is_utf8(text));
}

TEST(Tenants, RefusesWhatIsNone) {
  MetricRegistry registry;
  for (const char* text : {"gold", "=1", "gold=0", "gold=x", "gold=-1"})
    EXPECT_THROW(Tenants("parameter", {text}, 1, registry), base::Error) << text;
  EXPECT_THROW(Tenants("cookie", {}, 1, registry), base::Error);
  EXPECT_THROW(Tenants("", {"gold=1"}, 1, registry), base::Error);
  EXPECT_EQ(Tenants("", {}, 1, registry).find("x").number, 0u);
}

}  // namespace
}  // namespace trireme::serve
