// Tests keys in a file: whom they identify, what they permit, and files that change or are invalid.
#include "serve/access/api_keys.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "serve/access/access.h"
#include "serve/access/tenants.h"

namespace trireme::serve {
namespace {

class ApiKeysTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            ("trireme_keys_" + std::string(test->name()) + std::to_string(::getpid()) + ".yaml");
  }
  void TearDown() override { std::filesystem::remove(path_); }
  void write(const std::string& text) const {
    // Written under another name and then renamed, as editors do, so the file is never incomplete.
    const std::string part = path_.string() + ".part";
    std::ofstream(part) << text;
    std::filesystem::rename(part, path_);
  }
  std::string file() const { return path_.string(); }

  std::filesystem::path path_;
  base::FakeClock clock_{1};
  MetricRegistry metrics_;
};

constexpr const char* kTwo =
    "keys:\n"
    "  - tenant: gold\n    key: sk-gold-1\n    requests_per_minute: 2\n"
    "  - tenant: gold\n    key: sk-gold-2\n    requests_per_minute: 2\n"
    "  - tenant: silver\n    key: ${TRIREME_TEST_KEY}\n    models: [talk, \"small*\"]\n";

TEST_F(ApiKeysTest, KeysAreFoundAndShareTheirTenantsAccount) {
  ::setenv("TRIREME_TEST_KEY", "sk-silver", 1);
  write(kTwo);
  const ApiKeys keys(file(), clock_, metrics_);
  EXPECT_EQ(keys.size(), 3u);
  EXPECT_EQ(keys.find("sk-gold-1"), nullptr);
  EXPECT_EQ(keys.find("Bearer sk-gold-3"), nullptr);
  EXPECT_EQ(keys.find("Bearer "), nullptr);
  EXPECT_EQ(keys.find(""), nullptr);
  const auto one = keys.find("Bearer sk-gold-1"), two = keys.find("Bearer sk-gold-2");
  ASSERT_TRUE(one && two);
  EXPECT_EQ(one->tenant, "gold");
  EXPECT_EQ(one->account, two->account);
  const auto silver = keys.find("Bearer sk-silver");
  ASSERT_TRUE(silver);
  EXPECT_FALSE(silver->has_quota);
  EXPECT_TRUE(silver->may_use("talk") && silver->may_use("smaller"));
  EXPECT_FALSE(silver->may_use("talkative") || silver->may_use("large"));
}

TEST_F(ApiKeysTest, ChangesAreFollowedAndQuotasGoOn) {
  write("keys: [{tenant: gold, key: sk-gold-1, requests_per_minute: 5}]");
  ApiKeys keys(file(), clock_, metrics_);
  EXPECT_FALSE(keys.follow()) << "nothing has changed";
  const auto account = keys.find("Bearer sk-gold-1")->account;
  for (int i = 0; i < 5; ++i) account->take(1, clock_.now_ns());
  write("keys: [{tenant: gold, key: sk-gold-2, requests_per_minute: 6}]");
  EXPECT_TRUE(keys.follow());
  EXPECT_EQ(keys.find("Bearer sk-gold-1"), nullptr);
  ASSERT_NE(keys.find("Bearer sk-gold-2"), nullptr);
  EXPECT_EQ(keys.find("Bearer sk-gold-2")->account, account);
  EXPECT_THROW(account->take(1, clock_.now_ns()), QuotaError) << "a new key is no new quota";
  write("keys: [{tenant: gold, key: sk-gold-3, requests_per_minute: -1}]");
  EXPECT_THROW(keys.follow(), base::Error);
  EXPECT_NE(keys.find("Bearer sk-gold-2"), nullptr) << "a wrong file changes nothing";
  EXPECT_FALSE(keys.follow()) << "and is told once";
  std::filesystem::remove(path_);
  EXPECT_THROW(keys.follow(), base::Error);
  EXPECT_NE(keys.find("Bearer sk-gold-2"), nullptr);
}

TEST_F(ApiKeysTest, WrongFilesAreToldByTheirLineAndNeverBySecrets) {
  ::unsetenv("TRIREME_TEST_KEY");
  const auto told = [&](const std::string& text) -> std::string {
    write(text);
    try {
      const ApiKeys keys(file(), clock_, metrics_);
    } catch (const base::Error& error) {
      EXPECT_EQ(std::string(error.what()).find("sk-"), std::string::npos) << error.what();
      return error.what();
    }
    return "";
  };
  EXPECT_NE(told("keys:\n  - tenant: a\n    key: sk-aaaaaaaa\n  - tenant: b\n    key: sk-aaaaaaaa\n")
                .find("line 4"),
            std::string::npos);
  for (const char* text :
       {"", "keys: []", "keys: 3", "key: []", "keys: [3]", "keys: [{tenant: a}]",
        "keys: [{key: sk-aaaaaaaa}]", "keys: [{tenant: a, key: short}]",
        "keys: [{tenant: a, key: sk-aaaaaaaa, quota: 3}]",
        "keys: [{tenant: a, key: sk-aaaaaaaa, requests_per_minute: 0}]",
        "keys: [{tenant: a, key: sk-aaaaaaaa, tokens_per_minute: many}]",
        "keys: [{tenant: a, key: sk-aaaaaaaa, models: []}]",
        "keys: [{tenant: a, key: '${TRIREME_TEST_KEY}'}]",
        "keys: [{tenant: a, key: sk-aaaaaaaa, requests_per_minute: 1}, {tenant: a, key: sk-bbbbbbbb}]"})
    EXPECT_NE(told(text), "") << text;
}

TEST_F(ApiKeysTest, RulesAndTenantsGoByThem) {
  write(
      "keys:\n  - {tenant: gold, key: sk-gold-1, requests_per_minute: 5}\n"
      "  - {tenant: free, key: sk-free-1, models: [talk]}\n");
  const ApiKeys keys(file(), clock_, metrics_);
  const auto judge = [&](const AccessRules& rules, const std::string& shown, bool is_counted,
                         const std::string& model = "talk") {
    const Caller caller{.header = [&](const std::string& name) -> std::string_view {
                          return name == "authorization" ? std::string_view(shown) : std::string_view();
                        },
                        .is_counted = is_counted};
    return rules.judge(Category::inference, model, caller);
  };
  const AccessRules rules({}, &keys);
  EXPECT_EQ(judge(rules, "", true), Access::needs_key);
  EXPECT_EQ(judge(rules, "Bearer sk-gold-1", true), Access::allowed);
  EXPECT_EQ(judge(rules, "Bearer sk-gold-1", false), Access::is_not_counted);
  EXPECT_EQ(judge(rules, "Bearer sk-free-1", false), Access::allowed);
  EXPECT_EQ(judge(rules, "Bearer sk-free-1", true, "other"), Access::needs_key);
  EXPECT_EQ(judge(rules, "Bearer sk-gold-10", true), Access::needs_key);
  const AccessRules both({"inference:authorization=Bearer sk-ops"}, &keys);
  EXPECT_EQ(judge(both, "Bearer sk-ops", false), Access::allowed);
  EXPECT_EQ(judge(both, "Bearer sk-free-1", false), Access::allowed);
  EXPECT_EQ(judge(both, "", true), Access::needs_key);
  Tenants tenants("", {"gold=3"}, 4, metrics_, &keys);
  EXPECT_TRUE(tenants.is_on());
  EXPECT_EQ(tenants.find("Bearer sk-gold-1").weight, 3);
  EXPECT_NE(tenants.find("Bearer sk-free-1").number, tenants.find("Bearer sk-gold-1").number);
  EXPECT_EQ(tenants.name_of("Bearer sk-free-1"), "free");
  EXPECT_EQ(tenants.owner_of("Bearer sk-free-1"), "free");
  EXPECT_EQ(tenants.owner_of("Bearer sk-ops").find("sk-ops"), std::string::npos) << "a rule's secret";
  EXPECT_THROW(Tenants("key", {}, 4, metrics_), base::Error);
}

// A rule may admit a request whose header holds no key of the file, but the rule's secret.
TEST_F(ApiKeysTest, LabelsNameTenantsOfKeysAndNoSecretOfARule) {
  write("keys:\n  - {tenant: gold, key: sk-gold-1}\n  - {tenant: free, key: sk-free-1}\n");
  const ApiKeys keys(file(), clock_, metrics_);
  Tenants tenants("", {"gold=3"}, 4, metrics_, &keys);
  for (const char* shown :
       {"Bearer sk-gold-1", "Bearer sk-free-1", "Bearer sk-of-ops", "sk-without-bearer", ""})
    tenants.find(shown);
  EXPECT_EQ(tenants.find("Bearer sk-of-ops").number, tenants.find("Bearer sk-of-ops").number);
  const std::string text = metrics_.expose();
  EXPECT_EQ(text.find("sk-"), std::string::npos);
  for (const char* tenant : {"gold", "free", "key-", "none"})
    EXPECT_NE(text.find(base::concat("trireme_tenant_requests_total{tenant=\"", tenant)), std::string::npos)
        << tenant;
}

}  // namespace
}  // namespace trireme::serve
