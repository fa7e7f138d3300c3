// resize: nearest and linear against coordinates written out, and properties of the antialiased kernels.
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

}  // namespace
}  // namespace trireme::ops
