// Measurements of a device: every result is a number or a reason.
#include "runtime/device_speed.h"

#include <gtest/gtest.h>

#include "runtime/open_device.h"

namespace trireme::runtime {
namespace {

TEST(DeviceSpeed, CpuHasCeilingsAndRunsAllItsOperators) {
  const auto device = open_device("cpu");
  base::ThreadPool pool(2);
  const SpeedOptions options{.scale = 0.004, .seconds = 0.005, .only = {}};
  const Ceilings ceilings = measure_ceilings(*device, pool, options);
  EXPECT_GT(ceilings.copy_gbytes_s, 0);
  EXPECT_GT(ceilings.tflop_s(tensor::DType::f32), 0);
  const std::vector<OpSpeed> speeds = measure_ops(*device, pool, ceilings, options);
  EXPECT_GT(speeds.size(), 10u);
  for (const OpSpeed& s : speeds) {
    EXPECT_EQ(s.refused, "") << s.op;
    EXPECT_GT(s.seconds, 0) << s.op;
    EXPECT_GT(s.percent, 0) << s.op;
  }
}

TEST(DeviceSpeed, OnlyNamedOperators) {
  const auto device = open_device("cpu");
  base::ThreadPool pool(1);
  const std::vector<OpSpeed> speeds =
      measure_ops(*device, pool, {}, {.scale = 0.004, .seconds = 0.001, .only = "norm"});
  ASSERT_EQ(speeds.size(), 2u);
  EXPECT_EQ(speeds[0].op, "layer_norm");
  EXPECT_EQ(speeds[1].op, "rms_norm");
}

}  // namespace
}  // namespace trireme::runtime
