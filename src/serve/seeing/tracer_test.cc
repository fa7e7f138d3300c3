// Tests the settings of traces: of the server, of its models, and what a cleared one becomes.
#include "serve/seeing/tracer.h"

#include <gtest/gtest.h>

#include "base/files/scratch.h"

namespace trireme::serve {
namespace {

TEST(Tracer, ClearedSettingsOfTheServerAreThoseOfTheStart) {
  const std::shared_ptr<const std::string> scratch = base::make_scratch("trireme-tracer-");
  base::SystemClock clock;
  base::Log log{base::LogLevel::off};
  Tracer tracer({.file = *scratch + "/traces.json", .otlp_url = "", .is_on = true, .rate = 1},
                base::Env{log, clock});
  const auto set = [&](const std::string& model, const char* changes) {
    tracer.update(model, base::parse_json(changes));
    const base::Json now = tracer.settings(model);
    return now.at("trace_level").as_array().at(0).as_string() + " " + now.at("trace_rate").as_string();
  };
  EXPECT_EQ(set("", R"({"trace_level":["OFF"],"trace_rate":"7"})"), "OFF 7");
  EXPECT_EQ(set("m", R"({"trace_rate":"3"})"), "OFF 3");
  EXPECT_EQ(set("m", R"({"trace_rate":null})"), "OFF 7");
  EXPECT_EQ(set("", R"({"trace_level":null,"trace_rate":null})"), "TIMESTAMPS 1");
  EXPECT_EQ(set("m", "{}"), "TIMESTAMPS 1");
}

TEST(Tracer, ACountIsOfOurOwnTurnsNotOfCallersThatSample) {
  const std::shared_ptr<const std::string> scratch = base::make_scratch("trireme-tracer-");
  base::SystemClock clock;
  base::Log log{base::LogLevel::off};
  Tracer tracer({.file = *scratch + "/traces.json", .otlp_url = "", .is_on = true, .rate = 2},
                base::Env{log, clock});
  tracer.update("", base::parse_json(R"({"trace_count":"2"})"));
  const std::string sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const std::string unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
  const auto is_traced = [&](const std::string& caller) {
    return tracer.begin("m", caller, clock.now_ns()) != nullptr;
  };
  EXPECT_TRUE(is_traced(""));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_traced(sampled)) << i;  // one of them is a turn
  for (const std::string& caller : {std::string(), unsampled}) {
    EXPECT_FALSE(is_traced(caller)) << "the count is spent";
    EXPECT_FALSE(is_traced(caller));
    EXPECT_TRUE(is_traced(sampled));
    EXPECT_TRUE(is_traced(sampled));
  }
  EXPECT_EQ(tracer.settings("").at("trace_count").as_string(), "0");
}

}  // namespace
}  // namespace trireme::serve
