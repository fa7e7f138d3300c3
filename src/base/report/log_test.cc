// Tests the log: the form of a line, levels, quoting, and whole lines from many threads.
#include "base/report/log.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace trireme::base {
namespace {

TEST(Log, WritesOneLineAnEvent) {
  std::string out;
  Log log(LogLevel::info, 3, [&](std::string_view line) { out += line; });
  log.debug("serve", "hidden");
  log.info("serve", "ready", {{"port", 8000}, {"model", "bert base"}, {"note", "a\nb"}, {"empty", ""}});
  EXPECT_EQ(out, "r3 info serve ready port=8000 model=\"bert base\" note=\"a\\nb\" empty=\"\"\n");
  log.set_level(LogLevel::debug);
  log.debug("sched", "batch");
  EXPECT_TRUE(out.ends_with("r3 debug sched batch\n"));
}

TEST(Log, LevelsHaveNames) {
  for (const LogLevel level :
       {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error, LogLevel::off}) {
    EXPECT_EQ(parse_log_level(to_string(level)), level);
  }
  EXPECT_THROW(parse_log_level("loud"), Error);
}

TEST(Log, LinesFromManyThreadsStayWhole) {
  std::vector<std::string> lines;
  Log log(LogLevel::info, -1, [&](std::string_view line) { lines.emplace_back(line); });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) log.info("base", "tick");
    });
  }
  for (std::thread& t : threads) t.join();
  ASSERT_EQ(lines.size(), 2000u);
  for (const std::string& line : lines) ASSERT_EQ(line, "info base tick\n");
}

}  // namespace
}  // namespace trireme::base
