// lrn: the vector kernel against the reference, over window sizes, exponents and ranks.
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

TEST(Lrn, VectorsAreThoseOfTheReference) {
  uint32_t seed = 1;
  for (const tensor::Dims& x :
       {tensor::Dims{2, 7, 5, 9}, {1, 3, 600}, {2, 1, 4}, {3, 20}, {1, 6, 3, 5, 47}}) {
    for (const double beta : {0.75, 0.5, 1.0, 0.6}) {
      for (const int64_t size : {1, 2, 5, 30}) {
        const ir::Attrs attrs{{"size", size}, {"beta", beta}, {"alpha", 0.3}, {"bias", 1.5}};
        const auto results = tests::run_kernels("lrn", attrs, {tests::random_tensor(x, seed++)});
        ASSERT_EQ(results.size(), 2u);
        EXPECT_EQ(results[0].kernel, "vector");
        tests::expect_close(results[0].out[0], results[1].out[0].to_doubles(), 2e-6, 1e-6, attrs.to_string());
      }
    }
  }
}

}  // namespace
}  // namespace trireme::ops
