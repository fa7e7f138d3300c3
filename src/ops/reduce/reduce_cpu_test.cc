// Reductions and scans along one axis: every kernel against the reference or plain loops, for small extents
// and those around the vector width, with NaN and equal values.
#include <cstring>
#include <limits>

#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::Tensor;

class Draw {
 public:
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  Dims dims() {
    return {1 + below(5), 1 + below(below(2) == 0 ? 7 : 40), 1 + below(below(3) == 0 ? 300 : 9)};
  }
  Tensor tensor(const Dims& dims, bool has_nan) {
    Tensor t = tests::random_tensor(dims, engine_());
    for (float& v : t.mutable_data<float>()) {
      if (below(3) == 0) v = static_cast<float>(below(3));
      if (has_nan && below(30) == 0) v = std::numeric_limits<float>::quiet_NaN();
    }
    return t;
  }

 private:
  std::mt19937 engine_{21};
};

TEST(ReduceKernels, AllAreThoseOfTheReference) {
  Draw draw;
  for (int trial = 0; trial < 400; ++trial) {
    const char* names[] = {"sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square"};
    const std::string op = std::string("reduce_") + names[draw.below(8)];
    const Dims dims = draw.dims();
    const Tensor x = draw.tensor(dims, draw.below(3) == 0);
    const Tensor axes = Tensor::from<int64_t>({1}, {draw.below(3)});
    const auto results = tests::run_kernels(op, {}, {x, axes});
    const std::vector<double> want = results.back().out[0].to_doubles();
    for (const auto& r : results) {
      const std::vector<double> got = r.out[0].to_doubles();
      for (size_t i = 0; i < want.size(); ++i) {
        if (std::isnan(want[i]))
          ASSERT_TRUE(std::isnan(got[i])) << op << " by " << r.kernel << tensor::to_string(dims);
        else
          ASSERT_NEAR(got[i], want[i], 1e-4 + 1e-5 * std::abs(want[i]))
              << op << " by " << r.kernel << tensor::to_string(dims);
      }
    }
  }
}

/// Joined with any values of its type, the extreme of none changes nothing.
TEST(ReduceKernels, ExtremesOfNothingAreTheEndsOfTheType) {
  const Tensor axes = Tensor::from<int64_t>({1}, {0});
  const auto expect_ends = [&](auto type, double least, double most) {
    const Tensor none = Tensor::empty(tensor::dtype_of<decltype(type)>(), {0, 3});
    for (const auto& r : tests::run_kernels("reduce_max", {}, {none, axes}))
      EXPECT_EQ(r.out[0].to_doubles(), std::vector<double>(3, least)) << r.kernel;
    for (const auto& r : tests::run_kernels("reduce_min", {}, {none, axes}))
      EXPECT_EQ(r.out[0].to_doubles(), std::vector<double>(3, most)) << r.kernel;
  };
  expect_ends(int8_t{}, -128, 127);
  expect_ends(int16_t{}, -32768, 32767);
  expect_ends(int32_t{}, -2147483648.0, 2147483647.0);
  expect_ends(uint8_t{}, 0, 255);
  expect_ends(float{}, -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity());
}

TEST(ReduceKernels, MeansOfLargeIntegersLieBetweenThem) {
  const auto expect_mean = [](auto type, const std::vector<decltype(type)>& values, decltype(type) mean) {
    const auto count = static_cast<int64_t>(values.size());
    const Tensor x = Tensor::from<decltype(type)>({1, count}, values), axes = Tensor::from<int64_t>({1}, {1});
    for (const auto& r : tests::run_kernels("reduce_mean", {}, {x, axes}))
      EXPECT_EQ(r.out[0].data<decltype(type)>()[0], mean) << r.kernel;
  };
  const int64_t large = int64_t{1} << 62;
  expect_mean(int64_t{}, {large, large, large, large}, large);
  expect_mean(int64_t{}, std::vector<int64_t>(40, -large - 5), -large - 5);
  expect_mean(int64_t{}, {-7, 2}, -2);  // toward 0
  expect_mean(uint64_t{}, {~uint64_t{0}, ~uint64_t{0}}, ~uint64_t{0});
  expect_mean(int64_t{}, {}, 0);
}

TEST(ArgKernels, AllAreThoseOfTheReference) {
  Draw draw;
  for (int trial = 0; trial < 300; ++trial) {
    const Dims dims = draw.dims();
    const ir::Attrs attrs{{"axis", draw.below(3)}, {"select_last_index", draw.below(2)}};
    const char* op = draw.below(2) == 0 ? "arg_max" : "arg_min";
    const auto results = tests::run_kernels(op, attrs, {draw.tensor(dims, draw.below(2) == 0)});
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].out[0].to_ints(), results[1].out[0].to_ints())
        << op << tensor::to_string(dims) << attrs.to_string();
  }
}

TEST(Scans, LanesAreRunningTotals) {
  Draw draw;
  for (int trial = 0; trial < 100; ++trial) {
    const Dims dims = draw.dims();
    const int64_t axis = draw.below(3), exclusive = draw.below(2), reverse = draw.below(2);
    const Tensor x = draw.tensor(dims, false), at = Tensor::from<int64_t>({1}, {axis});
    const Tensor y =
        tests::run_kernels("cum_sum", {{"exclusive", exclusive}, {"reverse", reverse}}, {x, at})[0].out[0];
    int64_t inner = 1;
    for (size_t d = static_cast<size_t>(axis) + 1; d < dims.size(); ++d) inner *= dims[d];
    const int64_t n = dims[static_cast<size_t>(axis)];
    for (int64_t lane = 0; lane < x.elements() / n; ++lane) {
      double total = 0;
      for (int64_t k = 0; k < n; ++k) {
        const size_t i =
            static_cast<size_t>((lane / inner * n + (reverse != 0 ? n - 1 - k : k)) * inner + lane % inner);
        const double next = total + static_cast<double>(x.data<float>()[i]);
        ASSERT_EQ(y.data<float>()[i], static_cast<float>(exclusive != 0 ? total : next))
            << tensor::to_string(dims);
        total = next;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::ops
