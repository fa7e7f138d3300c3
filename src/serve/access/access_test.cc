// Tests access rules: what they name, what is open, and that every route has the right category.
#include "serve/access/access.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"

namespace trireme::serve {
namespace {

Caller with(const std::string& name, const std::string& value, bool is_local = true) {
  return {.header =
              [=](const std::string& header) {
                return header == name ? std::string_view(value) : std::string_view();
              },
          .is_local = is_local};
}

bool allows(const AccessRules& rules, Category category, const Caller& caller, std::string_view model = {}) {
  return rules.judge(category, model, caller) == Access::allowed;
}

TEST(AccessRules, AsksForTheSecretOfTheCategory) {
  const AccessRules rules(
      {"inference,model-repository:Authorization=Bearer a=b", "statistics:x-key=1", "statistics:x-key=2"});
  EXPECT_TRUE(allows(rules, Category::health, with("", "")));
  EXPECT_FALSE(allows(rules, Category::inference, with("", "")));
  EXPECT_TRUE(allows(rules, Category::inference, with("authorization", "Bearer a=b")));
  EXPECT_FALSE(allows(rules, Category::inference, with("authorization", "Bearer a=")));
  EXPECT_FALSE(allows(rules, Category::inference, with("authorization", "Bearer a=bc")));
  EXPECT_FALSE(allows(rules, Category::statistics, with("authorization", "Bearer a=b")));
  EXPECT_TRUE(allows(rules, Category::statistics, with("x-key", "2")));  // either of its secrets is accepted
}

TEST(AccessRules, AllIsTheRest) {
  const AccessRules rules({"all:k=1", "health:k=2"});
  EXPECT_TRUE(allows(rules, Category::logging, with("k", "1")));
  EXPECT_FALSE(allows(rules, Category::health, with("k", "1")));
  for (const char* bad : {"", "health", "health:", "health:k", "health:=v", "health:k=", "nonsense:k=v",
                          ":k=v", "health@:k=v", "health@m:anyone", "@m:k=v", "health@,:k=v"}) {
    EXPECT_THROW(AccessRules({bad}), base::Error) << bad;
  }
}

/// Anyone who can reach the port may send requests, but changes that affect the whole server need a key or a
/// caller on the same machine.
TEST(AccessRules, ControlCallsFromElsewhereNeedAKey) {
  const Caller far = with("", "", false), near = with("", "");
  const AccessRules none({});
  for (size_t i = 0; i < kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    EXPECT_EQ(none.judge(category, "m", near), Access::allowed);
    EXPECT_EQ(none.judge(category, "m", far), is_control(category) ? Access::only_here : Access::allowed);
    EXPECT_EQ(none.judge_before_reading(category, far), none.judge(category, "", far));
  }
  const AccessRules rules({"logging:k=1", "trace:anyone"});
  EXPECT_EQ(rules.judge(Category::logging, "", with("k", "1", false)), Access::allowed);
  EXPECT_EQ(rules.judge(Category::logging, "", near), Access::needs_key);  // a rule applies to everybody
  EXPECT_EQ(rules.judge(Category::trace, "", far), Access::allowed);
  EXPECT_EQ(rules.judge(Category::model_repository, "", far), Access::only_here);
  const AccessRules open({"all:anyone", "logging:k=1"});
  EXPECT_EQ(open.judge(Category::shared_memory, "", far), Access::allowed);
  EXPECT_EQ(open.judge(Category::logging, "", far), Access::needs_key);
  EXPECT_TRUE(is_forwarded(with("x-forwarded-for", "1.2.3.4").header));
  EXPECT_FALSE(is_forwarded(with("x-request-id", "1").header));
}

TEST(AccessRules, AModelsRulesStandInThePlaceOfTheOthers) {
  const AccessRules rules({"inference:k=all", "inference,model-config@gold,silver*:k=own", "all@secret:k=s"});
  const auto on = [&](std::string_view model, const char* key, Category category = Category::inference) {
    return allows(rules, category, with("k", key), model);
  };
  EXPECT_TRUE(on("bronze", "all") && on("gold", "own") && on("silver-2", "own") && on("golden", "all"));
  EXPECT_FALSE(on("bronze", "own") || on("gold", "all") || on("silver", "all") || on("golden", "own"));
  EXPECT_TRUE(on("bronze", "", Category::model_config));  // open except for those two models
  EXPECT_FALSE(on("gold", "", Category::model_config));
  EXPECT_TRUE(on("secret", "s") && on("secret", "s", Category::statistics) &&
              on("gold", "", Category::statistics));
  EXPECT_FALSE(on("secret", "all") || on("secret", "", Category::statistics));
  const auto begins = [&](const char* key, Category category = Category::inference) {
    return rules.judge_before_reading(category, with("k", key)) == Access::allowed;
  };
  EXPECT_TRUE(begins("all") && begins("own") && begins("s"));
  EXPECT_FALSE(begins("") || begins("other"));
  EXPECT_TRUE(begins("", Category::statistics));
}

TEST(AccessRules, PathsNameTheirModels) {
  EXPECT_EQ(model_of_path("/v2/models/m/infer"), "m");
  EXPECT_EQ(model_of_path("/v2/models/m/versions/3/infer/"), "m");
  EXPECT_EQ(model_of_path("/v2/models/a%2Db"), "a-b");
  EXPECT_EQ(model_of_path("/v2/repository/models/m/load"), "m");
  EXPECT_EQ(model_of_path("/v2/repository/models/m%2F/unload"), "m/");
  EXPECT_EQ(model_of_path("/v2/models/stats"), "");
  EXPECT_EQ(model_of_path("/v2/models/stats/config"), "stats");
  EXPECT_EQ(model_of_path("/v2/repository/index"), "");
  EXPECT_EQ(model_of_path("/metrics"), "");
}

TEST(AccessRules, SecretsComeFromAFileAndTheEnvironment) {
  const std::string file = testing::TempDir() + "rules";
  std::ofstream(file)
      << "# who may ask\n\n  inference:authorization=Bearer ${TRIREME_TEST_KEY} \r\nlogging:k=1";
  EXPECT_THROW(AccessRules(access_rules({}, file)), base::Error);  // the variable is unset
  setenv("TRIREME_TEST_KEY", "s}1", 1);
  const AccessRules rules(access_rules({"health:k=2"}, file));
  unsetenv("TRIREME_TEST_KEY");
  EXPECT_TRUE(allows(rules, Category::inference, with("authorization", "Bearer s}1")));
  EXPECT_FALSE(allows(rules, Category::inference, with("authorization", "Bearer ${TRIREME_TEST_KEY}")));
  EXPECT_TRUE(allows(rules, Category::logging, with("k", "1")));
  EXPECT_TRUE(allows(rules, Category::health, with("k", "2")));
  EXPECT_FALSE(allows(rules, Category::health, with("k", "1")));
  std::ofstream(file) << "# nothing\n";
  EXPECT_THROW(access_rules({}, file), base::Error);
  EXPECT_THROW(access_rules({}, file + ".absent"), base::Error);
}

TEST(AccessRules, OtherSpellingsOfAPathStayInTheirCategory) {
  EXPECT_EQ(category_of_path("/v2/trace/setting/"), Category::trace);
  EXPECT_EQ(category_of_path("/v2/logging//"), Category::logging);
  EXPECT_EQ(category_of_path("/v2/models/m/versions/3/infer/"), Category::inference);
  EXPECT_EQ(category_of_path("/v2/models/infer"), Category::metadata);  // a model named infer
  EXPECT_EQ(category_of_path("/v2/models/stats/config"), Category::model_config);
}

TEST(AccessRules, EveryRouteHasItsCategory) {
  EXPECT_EQ(category_of_path("/v2/models/m/versions/3/infer"), Category::inference);
  EXPECT_EQ(category_of_path("/v2/models/m/generate_stream"), Category::inference);
  EXPECT_EQ(category_of_path("/v2/models/m"), Category::metadata);
  EXPECT_EQ(category_of_path("/v1/load_lora_adapter/"), Category::model_repository);
  EXPECT_EQ(category_of_path("/v1/unload_lora_adapter"), Category::model_repository);
  EXPECT_EQ(category_of_path("/v1/completions"), Category::inference);
  EXPECT_EQ(category_of_path("/v2"), Category::metadata);
  EXPECT_EQ(category_of_path("/v2/models/m/ready"), Category::health);
  EXPECT_EQ(category_of_path("/v2/models/stats"), Category::statistics);
  EXPECT_EQ(category_of_path("/metrics"), Category::statistics);
  EXPECT_EQ(category_of_path("/v2/models/m/trace/setting"), Category::trace);
  EXPECT_EQ(category_of_path("/v2/repository/models/health/load"), Category::model_repository);
  EXPECT_EQ(category_of_path("/v2/systemsharedmemory/region/x/register"), Category::shared_memory);
  EXPECT_EQ(category_of_call("RepositoryModelLoad"), Category::model_repository);
  EXPECT_EQ(category_of_call("SystemSharedMemoryStatus"), Category::shared_memory);
  EXPECT_EQ(category_of_call("ServerMetadata"), Category::metadata);
}

}  // namespace
}  // namespace trireme::serve
