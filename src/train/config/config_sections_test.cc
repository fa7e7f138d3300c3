// Tests configuration sections: YAML and assignments, refusals with line and nearest name, round trip.
#include "train/config/config_sections.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::train {
namespace {

enum class Unit { samples, tokens };

struct ScheduleSection {
  double peak = 1e-3;
  int64_t warmup = 0;
  Unit unit = Unit::samples;
  void fields(base::OptionList& f) {
    f.add("peak", &peak, "highest rate").at_least(0);
    f.add("warmup", &warmup, "samples of warm-up").at_least(0);
    f.add_choice("unit", &unit, {"samples", "tokens"}, "what is counted");
  }
};

struct Model {
  std::string source;
  std::vector<std::string> config;
  bool tied = false;
  void fields(base::OptionList& f) {
    f.add("source", &source, "file").required();
    f.add("config", &config, "sizes");
    f.add("tied", &tied, "share the embedding");
  }
};

struct Fixture {
  Model model;
  ScheduleSection schedule;
  ConfigSections sections;
  Fixture() {
    sections.add("model", model, "What is trained.");
    sections.add("schedule", schedule, "How the rate moves.");
  }
  std::string yaml_error(std::string_view text) {
    try {
      sections.read_yaml(text, "run.yaml");
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
      return e.message();
    }
    return "accepted";
  }
};

TEST(ConfigSections, ReadsYamlAndAssignments) {
  Fixture f;
  f.sections.read_yaml(
      "model:\n  source: zoo:gpt\n  config: {layers: 4, name: x, drop: 0.1}\nschedule:\n  peak: 6e-4\n",
      "run.yaml");
  EXPECT_EQ(f.model.source, "zoo:gpt");
  EXPECT_EQ(f.model.config, (std::vector<std::string>{"layers=4", "name=x", "drop=0.1"}));
  EXPECT_EQ(f.schedule.peak, 6e-4);
  f.sections.assign("schedule.unit=tokens");
  f.sections.assign("schedule.warmup=20");
  f.sections.assign("model.source=7");
  f.sections.assign("model.config=[a=1, b=2]");
  f.sections.assign("model.tied=true");
  EXPECT_EQ(f.schedule.unit, Unit::tokens);
  EXPECT_EQ(f.schedule.warmup, 20);
  EXPECT_EQ(f.model.source, "7");
  EXPECT_EQ(f.model.config, (std::vector<std::string>{"a=1", "b=2"}));
  EXPECT_TRUE(f.model.tied);
  EXPECT_TRUE(f.sections.given("schedule", "warmup"));
}

TEST(ConfigSections, RefusalsNameLineAndNearest) {
  Fixture f;
  EXPECT_EQ(f.yaml_error("model:\n  source: a\nshedule:\n  peak: 1\n"),
            "run.yaml:3: unknown section 'shedule'; the nearest is 'schedule'");
  EXPECT_EQ(f.yaml_error("schedule:\n  peak: 1\n  warm_up: 3\n"),
            "run.yaml:3: section 'schedule': unknown key 'warm_up'; the nearest is 'warmup'");
  EXPECT_EQ(f.yaml_error("schedule:\n  peak: fast\n"),
            "run.yaml:2: section 'schedule': key 'peak': expected a number, found 'fast'");
  EXPECT_EQ(f.yaml_error("\nschedule:\n  warmup: 1.5\n"),
            "run.yaml:3: section 'schedule': key 'warmup': expected an integer, found '1.5'");
  EXPECT_EQ(f.yaml_error("schedule:\n  peak: -1\n"),
            "run.yaml:2: section 'schedule': key 'peak': must be at least 0, found -1");
  EXPECT_EQ(f.yaml_error("schedule:\n  unit: token\n"),
            "run.yaml:2: section 'schedule': key 'unit': expected one of samples, tokens; found 'token'");
  EXPECT_EQ(f.yaml_error("schedule: 3\n"), "run.yaml:1: section 'schedule' holds keys, found integer");
  EXPECT_EQ(f.yaml_error("- a\n"), "run.yaml: expected sections, found array");
  EXPECT_NE(f.yaml_error("model: {source: a\n").find("run.yaml: line"), std::string::npos);
  EXPECT_THROW(f.sections.assign("peak=3"), base::Error);
  EXPECT_THROW(f.sections.assign("schedule.peek=3"), base::Error);
}

TEST(ConfigSections, OneSectionFromAFileOfItsOwn) {
  Fixture f;
  f.sections.read_section("schedule", "warmup: 7\npeak: 0.5\n", "part.yaml");
  EXPECT_EQ(f.schedule.warmup, 7);
  EXPECT_EQ(f.schedule.peak, 0.5);
  try {
    f.sections.read_section("schedule", "warmup: 7\npeek: 0.5\n", "part.yaml");
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.message(), "part.yaml:2: section 'schedule': unknown key 'peek'; the nearest is 'peak'");
  }
  EXPECT_THROW(f.sections.read_section("schedule", "- a\n", "part.yaml"), base::Error);
}

TEST(ConfigSections, RequiredKeysAndRoundTrip) {
  Fixture f;
  EXPECT_THROW(f.sections.check_required(), base::Error);
  f.sections.assign("model.source=zoo:mlp");
  f.sections.assign("model.config=[a=1]");
  f.sections.check_required();
  Fixture g;
  g.sections.read_yaml(f.sections.to_yaml(), "again");
  EXPECT_EQ(g.sections.to_json(), f.sections.to_json());
  EXPECT_NE(f.sections.markdown().find("## schedule"), std::string::npos);
  EXPECT_NE(f.sections.markdown().find("| `peak` | X | 0.001 |"), std::string::npos);
}

}  // namespace
}  // namespace trireme::train
