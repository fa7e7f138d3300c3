// Tests what a step of a language model adds to its counts.
#include "serve/seeing/text_metrics.h"

#include <gtest/gtest.h>

namespace trireme::serve {
namespace {

TEST(TextMetrics, AStepAddsItsOwnTime) {
  MetricRegistry registry;
  TextMetrics metrics(registry, "m");
  sched::TextStats stats;
  stats.busy_ns = 5000;
  EXPECT_EQ(metrics.count_step(stats), 5000);
  stats.busy_ns = 12000;
  EXPECT_EQ(metrics.count_step(stats), 7000);
  EXPECT_EQ(metrics.count_step(stats), 0);
  EXPECT_NE(registry.expose().find("trireme_text_busy_us_total{model_name=\"m\",engine=\"0\"} 12\n"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::serve
