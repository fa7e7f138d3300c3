// Tests the errors of opening NCCL groups in programs without GPUs.
#include "comm/nccl.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/local.h"

namespace trireme::comm {
namespace {

/// A stream that belongs to no GPU.
class HostStream : public tensor::Stream {
 public:
  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cpu; }
  void synchronize() override {}
};

TEST(Nccl, OpeningAGroupOutlastsTheDeadlineOfCollectives) {
  EXPECT_EQ(opening_deadline_ns(0), 0) << "no deadline stays none";
  EXPECT_EQ(opening_deadline_ns(100 * base::kNsPerMs), 60 * base::kNsPerSecond);
  EXPECT_EQ(opening_deadline_ns(600 * base::kNsPerSecond), 600 * base::kNsPerSecond);
}

TEST(Nccl, RefusesWhatIsNoGpuInWords) {
  LocalWorld world(1);
  HostStream stream;
  try {
    open_nccl(world.communicator(0), stream);
    FAIL() << "no error";
  } catch (const base::Error& e) {
    const auto want = has_nccl() ? base::ErrorCode::invalid_argument : base::ErrorCode::unsupported;
    EXPECT_EQ(e.code(), want) << e.message();
    EXPECT_NE(e.message().find("NCCL"), std::string::npos);
  }
}

}  // namespace
}  // namespace trireme::comm
