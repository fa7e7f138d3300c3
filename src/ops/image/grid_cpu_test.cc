// grid_sample: blocks of points against the reference, for all modes, paddings, borders and non-finite
// values.
#include <limits>

#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;

TEST(GridSample, BlocksOfPointsAreThoseOfTheReference) {
  std::mt19937 engine(9);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); };
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t batch = 1 + below(2), height = 1 + below(9), width = 1 + below(30);
    const char* modes[] = {"nearest", "linear", "cubic"};
    const char* paddings[] = {"zeros", "border", "reflection"};
    const ir::Attrs attrs{{"mode", std::string(modes[below(3)])},
                          {"padding_mode", std::string(paddings[below(3)])},
                          {"align_corners", below(2)}};
    Tensor x = tests::random_tensor({batch, 1 + below(4), height, width}, static_cast<uint32_t>(trial));
    if (below(2) == 0) x.mutable_data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    Tensor grid =
        tests::random_tensor({batch, 1 + below(9), 1 + below(40), 2}, static_cast<uint32_t>(trial + 1000));
    if (below(2) == 0) grid.mutable_data<float>()[0] = std::numeric_limits<float>::infinity();
    const auto results = tests::run_kernels("grid_sample", attrs, {x, grid});
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].kernel, "point_blocks");
    const std::vector<double> got = results[0].out[0].to_doubles(), want = results[1].out[0].to_doubles();
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(want[i]))
        ASSERT_TRUE(std::isnan(got[i])) << attrs.to_string() << " at " << i;
      else
        ASSERT_NEAR(got[i], want[i], 1e-5) << attrs.to_string() << " at " << i;
    }
  }
}

}  // namespace
}  // namespace trireme::ops
