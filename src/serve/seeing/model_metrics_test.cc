// Tests which instances of a model are told to have worked.
#include "serve/seeing/model_metrics.h"

#include <gtest/gtest.h>

#include <string>

#include "base/clock.h"

namespace trireme::serve {
namespace {

TEST(ModelMetrics, WorkOfNoInstanceKeepsNoneBusy) {
  MetricRegistry registry;
  const MetricLabels labels{{"model", "m"}, {"version", "1"}};
  ModelMetrics metrics(registry, labels, 1, nullptr);
  metrics.add_instances(registry, labels, 1);
  const auto shows = [&](const std::string& seconds) {
    const std::string series =
        "trireme_instance_busy_seconds_total{model=\"m\",version=\"1\",instance=\"0\"} ";
    return registry.expose().find(series + seconds + "\n") != std::string::npos;
  };
  sched::Timing timing{
      .finished_ns = 2 * base::kNsPerSecond, .batch_rows = 1, .padded_rows = 1, .instance = -1};
  metrics.count_batch(timing);  // one of many texts that share their steps
  EXPECT_TRUE(shows("0"));
  metrics.count_busy(0, 3 * base::kNsPerSecond);
  EXPECT_TRUE(shows("3"));
  timing.instance = 0;
  metrics.count_batch(timing);
  EXPECT_TRUE(shows("5"));
}

}  // namespace
}  // namespace trireme::serve
