// Rules of access: what they name, what is open, and which category every route has.
#include "serve/access.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"

namespace trireme::serve {
namespace {

AccessRules::Lookup with(const std::string& name, const std::string& value) {
  return [=](const std::string& header) {
    return header == name ? std::string_view(value) : std::string_view();
  };
}

TEST(AccessRules, AsksForTheSecretOfTheCategory) {
  const AccessRules rules(
      {"inference,model-repository:Authorization=Bearer a=b", "statistics:x-key=1", "statistics:x-key=2"});
  EXPECT_TRUE(rules.allows(Category::health, with("", "")));
  EXPECT_FALSE(rules.allows(Category::inference, with("", "")));
  EXPECT_TRUE(rules.allows(Category::inference, with("authorization", "Bearer a=b")));
  EXPECT_FALSE(rules.allows(Category::inference, with("authorization", "Bearer a=")));
  EXPECT_FALSE(rules.allows(Category::inference, with("authorization", "Bearer a=bc")));
  EXPECT_FALSE(rules.allows(Category::statistics, with("authorization", "Bearer a=b")));
  EXPECT_TRUE(rules.allows(Category::statistics, with("x-key", "2")));  // any of its secrets
}

TEST(AccessRules, AllIsTheRest) {
  const AccessRules rules({"all:k=1", "health:k=2"});
  EXPECT_TRUE(rules.allows(Category::logging, with("k", "1")));
  EXPECT_FALSE(rules.allows(Category::health, with("k", "1")));
  for (const char* bad : {"", "health", "health:", "health:k", "health:=v", "health:k=", "nonsense:k=v"}) {
    EXPECT_THROW(AccessRules({bad}), base::Error) << bad;
  }
}

TEST(AccessRules, SecretsComeFromAFileAndTheEnvironment) {
  const std::string file = testing::TempDir() + "rules";
  std::ofstream(file)
      << "# who may ask\n\n  inference:authorization=Bearer ${TRIREME_TEST_KEY} \r\nlogging:k=1";
  EXPECT_THROW(AccessRules(access_rules({}, file)), base::Error);  // the variable is not set
  setenv("TRIREME_TEST_KEY", "s}1", 1);
  const AccessRules rules(access_rules({"health:k=2"}, file));
  unsetenv("TRIREME_TEST_KEY");
  EXPECT_TRUE(rules.allows(Category::inference, with("authorization", "Bearer s}1")));
  EXPECT_FALSE(rules.allows(Category::inference, with("authorization", "Bearer ${TRIREME_TEST_KEY}")));
  EXPECT_TRUE(rules.allows(Category::logging, with("k", "1")));
  EXPECT_TRUE(rules.allows(Category::health, with("k", "2")));
  EXPECT_FALSE(rules.allows(Category::health, with("k", "1")));
  std::ofstream(file) << "# nothing\n";
  EXPECT_THROW(access_rules({}, file), base::Error);
  EXPECT_THROW(access_rules({}, file + ".absent"), base::Error);
}

TEST(AccessRules, OtherSpellingsOfAPathStayInTheirCategory) {
  EXPECT_EQ(category_of_path("/v2/trace/setting/"), Category::trace);
  EXPECT_EQ(category_of_path("/v2/logging//"), Category::logging);
  EXPECT_EQ(category_of_path("/v2/models/m/versions/3/infer/"), Category::inference);
  EXPECT_EQ(category_of_path("/v2/models/infer"), Category::metadata);  // a model of that name
  EXPECT_EQ(category_of_path("/v2/models/stats/config"), Category::model_config);
}

TEST(AccessRules, EveryRouteHasItsCategory) {
  EXPECT_EQ(category_of_path("/v2/models/m/versions/3/infer"), Category::inference);
  EXPECT_EQ(category_of_path("/v2/models/m/generate_stream"), Category::inference);
  EXPECT_EQ(category_of_path("/v2/models/m"), Category::metadata);
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
