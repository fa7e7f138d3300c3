// resize: nearest and linear against explicit coordinates, and properties of the antialiased kernels.
#include <algorithm>
#include <cstring>
#include <limits>
#include <random>

#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;

std::vector<Tensor> by_sizes(const Tensor& x, std::initializer_list<int64_t> sizes) {
  return {x, Tensor(), Tensor(), Tensor::from<int64_t>({static_cast<int64_t>(sizes.size())}, sizes)};
}

TEST(Resize, LinearHalfPixelMatchesTheFormula) {
  const Tensor x = tests::random_tensor({1, 2, 4, 6}, 1);
  std::vector<double> want;
  auto pixel = [&](int64_t c, int64_t h, int64_t w) {
    return double(
        x.data<float>()[size_t((c * 4 + std::clamp<int64_t>(h, 0, 3)) * 6 + std::clamp<int64_t>(w, 0, 5))]);
  };
  for (int64_t i = 0; i < 2 * 7 * 9; ++i) {
    const double y = (double(i / 9 % 7) + 0.5) * 4 / 7 - 0.5, z = (double(i % 9) + 0.5) * 6 / 9 - 0.5;
    const auto h = static_cast<int64_t>(std::floor(y)), w = static_cast<int64_t>(std::floor(z));
    const double fy = y - double(h), fz = z - double(w);
    want.push_back((1 - fy) * ((1 - fz) * pixel(i / 63, h, w) + fz * pixel(i / 63, h, w + 1)) +
                   fy * ((1 - fz) * pixel(i / 63, h + 1, w) + fz * pixel(i / 63, h + 1, w + 1)));
  }
  const ir::Attrs attrs{{"mode", std::string("linear")}};
  for (const auto& r : tests::run_kernels("resize", attrs, by_sizes(x, {1, 2, 7, 9}))) {
    tests::expect_close(r.out[0], want, 1e-5, 1e-5, r.kernel);
  }
}

/// ONNX's text and ONNX Runtime: one output reads the first input, by sizes and by scales of which the extent
/// is no whole number.
TEST(Resize, OnePytorchHalfPixelIsTheFirst) {
  const Tensor x = Tensor::from<float>({1, 1, 1, 4}, {3, 7, -2, 5});
  const Tensor scales = Tensor::from<float>({4}, {1, 1, 1, 0.3f});
  const ir::Attrs attrs{{"mode", std::string("cubic")},
                        {"coordinate_transformation_mode", std::string("pytorch_half_pixel")}};
  for (const auto& in : {by_sizes(x, {1, 1, 1, 1}), std::vector<Tensor>{x, Tensor(), scales}}) {
    for (const auto& r : tests::run_kernels("resize", attrs, in))
      tests::expect_close(r.out[0], {3}, 0, 1e-6, r.kernel);
  }
}

/// 10 * 0.7f is 6.9999999 exactly and 7 in f32, in which ONNX's shape inference and PyTorch multiply.
TEST(Resize, ExtentsAreThoseThatOnnxInfers) {
  const std::vector<std::pair<float, int64_t>> cases{{0.7f, 7}, {0.9f, 9}, {1.4f, 14}, {1.3f, 13}};
  const ir::Attrs none;
  for (const auto& [scale, extent] : cases) {
    const Tensor x = tests::random_tensor({1, 1, 10, 10}, 1);
    const Tensor scales = Tensor::from<float>({4}, {1, 1, scale, 1});
    for (const auto& r : tests::run_kernels("resize", {}, {x, Tensor(), scales}))
      EXPECT_EQ(r.out[0].dims(), (tensor::Dims{1, 1, extent, 10})) << scale << " by " << r.kernel;
    // With another axis unknown.
    const ir::NodeView open{
        .attrs = none,
        .in = {{tensor::DType::f32, {tensor::Dim::unknown(), 1, 10, 10}}, {}, scales.type()},
        .out = {},
        .known = {nullptr, nullptr, &scales},
        .is_present = {true, false, true}};
    EXPECT_EQ(ir::infer_types(ops::table().need("resize").schema, open)[0].to_string(),
              base::concat("f32[?,1,", extent, ",10]"));
  }
}

TEST(Resize, WeightsOfEveryModeSumToOne) {
  const Tensor ones = Tensor::from<float>({1, 1, 2, 3}, {1, 1, 1, 1, 1, 1});
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const int64_t antialias : {0, 1}) {
      if (antialias == 1 && mode[0] == 'n') continue;
      const ir::Attrs attrs{{"mode", std::string(mode)}, {"antialias", antialias}};
      for (const auto& r : tests::run_kernels("resize", attrs, by_sizes(ones, {1, 1, 5, 2}))) {
        tests::expect_close(r.out[0], std::vector<double>(10, 1.0), 1e-5, 0, mode);
      }
    }
  }
}

TEST(Resize, NearestKeepsIntegersExactly) {
  const Tensor x = Tensor::from<uint8_t>({1, 1, 1, 3}, {1, 200, 255});
  for (const auto& r : tests::run_kernels("resize", {}, by_sizes(x, {1, 1, 2, 6}))) {
    tests::expect_close(r.out[0], {1, 1, 200, 200, 255, 255, 1, 1, 200, 200, 255, 255}, 0, 0, r.kernel);
  }
}

/// Ranks 3 to 5, channels first and last, both directions: every kernel gives the bits of the axis-by-axis
/// kernel, for teams of any size.
TEST(Resize, RowsHaveTheBitsOfTheAxisByAxisKernel) {
  std::mt19937 engine(5);
  const auto below = [&](int n) { return static_cast<int64_t>(engine() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 240; ++trial) {
    const size_t rank = 3 + static_cast<size_t>(below(3));
    const bool is_last = below(2) == 0;
    tensor::Dims x{1 + below(2), 1 + below(3)};
    for (size_t d = 2; d < rank; ++d) x.push_back(below(4) == 0 ? 1 + below(3) : 1 + below(70));
    if (rank == 5) x[2] = 1 + below(4);
    if (is_last) std::rotate(x.begin() + 1, x.begin() + 2, x.end());
    if (is_last && below(2) == 0) x.back() = 7 + below(30);
    std::vector<int64_t> sizes(x.begin(), x.end());
    for (size_t d = is_last ? 1 : 2; d < rank - (is_last ? 1 : 0); ++d)
      if (below(5) != 0) sizes[d] = 1 + below(static_cast<int>(3 * x[d]) + 2);
    const char* modes[] = {"nearest", "linear", "cubic"};
    const char* places[] = {"half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"};
    const std::string mode = modes[below(3)];
    const ir::Attrs attrs{{"mode", mode},
                          {"coordinate_transformation_mode", std::string(places[below(4)])},
                          {"antialias", int64_t{mode != "nearest" && below(4) == 0}},
                          {"exclude_outside", int64_t{mode == "cubic" && below(4) == 0}}};
    Tensor t = tests::random_tensor(x, static_cast<uint32_t>(trial));
    if (below(4) == 0) t.mutable_data<float>()[0] = std::numeric_limits<float>::infinity();
    if (below(5) == 0) t = tests::random_bytes<uint8_t>(x, static_cast<uint32_t>(trial), 0, 255);
    if (below(5) == 0 && mode == "nearest")
      t = tests::random_bytes<int64_t>(x, static_cast<uint32_t>(trial), 0, 255);
    const std::vector<Tensor> in{t, Tensor(), Tensor(),
                                 Tensor::from<int64_t>({static_cast<int64_t>(rank)}, sizes)};
    const auto results = tests::run_kernels("resize", attrs, in, 1, {}, 1 + static_cast<int>(below(4)));
    ASSERT_FALSE(results.empty());
    for (const auto& r : results) {
      EXPECT_EQ(
          0, std::memcmp(r.out[0].raw(), results.back().out[0].raw(), static_cast<size_t>(r.out[0].bytes())))
          << r.kernel << " " << mode << " " << tensor::to_string(x) << " to " << tensor::to_string(sizes);
    }
  }
}

}  // namespace
}  // namespace trireme::ops
