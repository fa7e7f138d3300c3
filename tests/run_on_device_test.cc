// Tests that tests of kernels are skipped where there is no device, and say why.
#include "tests/run_on_device.h"

#include <gtest/gtest-spi.h>

namespace trireme::tests {
namespace {

std::unique_ptr<tensor::Device> none(std::string& why) {
  why = "no device in the drawer";
  return nullptr;
}

TEST(RunOnDevice, WithoutADeviceTheTestIsSkippedAndSaysWhy) {
  testing::TestPartResultArray results;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    EXPECT_EQ(device_or_skip(none), nullptr);
  }
  ASSERT_EQ(results.size(), 1);
  EXPECT_TRUE(results.GetTestPartResult(0).skipped());
  EXPECT_NE(std::string(results.GetTestPartResult(0).message()).find("no device in the drawer"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::tests
