// Division by multiplication against the processor's division.
#include "backend/cuda/device/divide.h"

#include <gtest/gtest.h>

#include <random>

namespace trireme::cuda {
namespace {

TEST(Divider, IsTheMachinesDivision) {
  std::mt19937_64 random(1);
  for (const int64_t below : {int64_t{INT32_MAX}, INT64_MAX}) {
    for (int k = 0; k < 200; ++k) {
      const int64_t d = static_cast<int64_t>(random() % static_cast<uint64_t>(below)) >> (k % 62);
      const Divider by(d, below);
      const int64_t divisor = std::max<int64_t>(1, d);
      for (int i = 0; i < 200; ++i) {
        int64_t n = static_cast<int64_t>(random() % static_cast<uint64_t>(below));
        if (i % 3 == 0) n = n / divisor * divisor;
        if (i % 3 == 1) n = std::max<int64_t>(0, n / divisor * divisor - 1);
        ASSERT_EQ(by.quotient(n), n / divisor) << n << " by " << divisor;
        int64_t rest = n;
        ASSERT_EQ(by.step(rest), n % divisor);
        ASSERT_EQ(rest, n / divisor);
      }
    }
  }
  EXPECT_EQ(Divider(0, 0).quotient(5), 5);
}

}  // namespace
}  // namespace trireme::cuda
