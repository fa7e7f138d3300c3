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

}  // namespace
}  // namespace trireme::serve
