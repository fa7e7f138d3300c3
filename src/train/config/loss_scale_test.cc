// Tests the loss scale: vectors of the training contracts, the lower limit, saving and restoring.
#include "train/config/loss_scale.h"

#include <gtest/gtest.h>

#include <vector>

namespace trireme::train {
namespace {

const LossScaleOptions kPyTorch{.window = 3};
const LossScaleOptions kMegatron{.initial = 4294967296.0, .window = 3, .hysteresis = 2, .minimum = 1};

std::vector<double> scales(const LossScaleOptions& options, const std::vector<int>& infs) {
  LossScaler scaler(options);
  std::vector<double> out;
  for (int inf : infs) {
    scaler.update(inf != 0);
    out.push_back(scaler.scale());
  }
  return out;
}

TEST(LossScale, PyTorchVector) {
  EXPECT_EQ(scales(kPyTorch, {0, 1, 0, 0, 0, 1, 1}),
            (std::vector<double>{65536, 32768, 32768, 32768, 65536, 32768, 16384}));
}

TEST(LossScale, MegatronVector) {
  const double high = 4294967296.0, low = 2147483648.0;
  EXPECT_EQ(scales(kMegatron, {0, 1, 1, 0, 0, 0, 1, 1}),
            (std::vector<double>{high, high, low, low, low, high, high, low}));
}

TEST(LossScale, StopsAtTheFloorAndSaysSo) {
  LossScaler scaler({.initial = 4, .minimum = 1});
  scaler.update(true);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_FALSE(scaler.is_exhausted());
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_TRUE(scaler.is_exhausted());
  scaler.update(false);
  EXPECT_FALSE(scaler.is_exhausted());
}

TEST(LossScale, StaysFiniteInF32) {
  LossScaler scaler({.initial = 1e38, .window = 1});
  for (int i = 0; i < 10; ++i) scaler.update(false);
  EXPECT_LE(scaler.scale(), 3.4e38);
}

TEST(LossScale, FixedDoesNotMove) {
  LossScaler scaler({.dynamic = false, .initial = 128});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_TRUE(scaler.is_exhausted());
}

TEST(LossScale, RestoredGoesOnAsIfItHadNotStopped) {
  const std::vector<int> infs{0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1};
  for (size_t cut = 0; cut < infs.size(); ++cut) {
    LossScaler whole(kMegatron), first(kMegatron), second(kPyTorch);
    for (size_t i = 0; i < cut; ++i) first.update(infs[i] != 0);
    second = LossScaler(kMegatron);
    second.restore(base::parse_json(first.state().dump()));
    for (size_t i = 0; i < infs.size(); ++i) {
      whole.update(infs[i] != 0);
      if (i >= cut) second.update(infs[i] != 0);
    }
    EXPECT_EQ(second.scale(), whole.scale()) << cut;
    EXPECT_EQ(second.state(), whole.state()) << cut;
  }
}

}  // namespace
}  // namespace trireme::train
