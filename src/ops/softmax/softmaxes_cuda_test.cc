// Softmax on the device against the CPU's.
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

TEST(SoftmaxCuda, RowsOfAllLengths) {
  for (const int64_t n : {1, 7, 8, 31, 32, 100, 1000, 1028}) {
    tests::expect_as_cpu({.op = "softmax", .in = {tests::random_tensor({3, 5, n}, uint32_t(n), 4.0f)}});
  }
}

TEST(SoftmaxCuda, AnotherAxisIsRefused) {
  ir::Attrs attrs;
  attrs.set("axis", int64_t{1});
  EXPECT_EQ(
      tests::expect_as_cpu({.op = "softmax", .in = {tests::random_tensor({2, 3, 4}, 1)}, .attrs = attrs},
                           /*may_refuse=*/true),
      0u);
}

}  // namespace
}  // namespace trireme::ops
