// Scales may be negative, huge, tiny, infinite or NaN: every kernel of an 8-bit product or sum gives the
// result of the definition, in which NaN becomes the zero point; also on the device.
#include <cfloat>

#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::random_bytes;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Scales {
  float x, w, y;
};
const std::vector<Scales> kScales{
    {0.02f, -0.01f, 0.05f},  {-0.02f, -0.01f, 0.05f}, {0.02f, 0.01f, -0.05f},   {0.5f, 1.0f, 0.1f},
    {3.0f, -700.0f, 0.001f}, {FLT_MAX, 1.0f, 1.0f},   {FLT_MAX, 1.0f, 0.01f},   {1e30f, -1e30f, 1e-30f},
    {1e-30f, 1e-30f, 1.0f},  {1e-40f, 1.0f, 1e-40f},  {0.0f, 1.0f, 1.0f},       {1.0f, 1.0f, 0.0f},
    {0.0f, 1.0f, 0.0f},      {kInf, 1.0f, 1.0f},      {1.0f, -kInf, 1.0f},      {1.0f, 1.0f, kInf},
    {kInf, 1.0f, kInf},      {kNan, 1.0f, 1.0f},      {1.0f, 1.0f, kNan},       {1.0f, kNan, 1.0f},
    {0.02f, 0.01f, -kInf},   {0.01f, 0.01f, 1e-45f},  {-FLT_MAX, FLT_MAX, 2.0f}};

std::string name_of(const Scales& s, const std::string& activation) {
  return base::concat("scales ", s.x, " ", s.w, " ", s.y, " ", activation, " ");
}

/// The result of the definition for an exact sum.
double finished(double sum, const Scales& s, bool relu, const Tensor& zero) {
  double real = sum * (double(s.x) * double(s.w));
  if (relu && real < 0) real = 0;
  if (!zero.defined()) return static_cast<double>(static_cast<float>(real));
  const double steps = real / double(s.y), low = zero.dtype() == DType::i8 ? -128 : 0;
  const double at = zero.to_doubles()[0];
  return std::isnan(steps) ? at : std::clamp(std::nearbyint(steps) + at, low, low + 255);
}

void expect_values(const Tensor& got, const std::vector<double>& want, double steps,
                   const std::string& what) {
  const std::vector<double> values = got.to_doubles();
  ASSERT_EQ(values.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    if ((std::isnan(want[i]) && std::isnan(values[i])) || values[i] == want[i]) continue;
    ASSERT_LE(std::abs(values[i] - want[i]), steps + 1e-5 * std::abs(want[i])) << what << " at " << i;
  }
}

/// The exact sums of a case are the results of the reference kernel in f32 with scales of one.
void check_product(const std::string& op, const Dims& x, const Dims& w, int64_t channels, int64_t group) {
  const ir::Attrs window{{"group", group}};
  for (const bool to_float : {false, true}) {
    for (const bool relu : {false, true}) {
      const std::string activation = relu ? "relu" : "none";
      ir::Attrs attrs = op == "qlinear" ? ir::Attrs{} : window;
      attrs.set("activation", activation);
      const Tensor y_zero = to_float ? Tensor()
                            : relu   ? Tensor::scalar<int8_t>(5)
                                     : Tensor::scalar<uint8_t>(90);
      std::vector<Tensor> in{random_bytes<uint8_t>(x, 1, 0, 255),
                             Tensor::scalar(1.0f),
                             Tensor::scalar<uint8_t>(120),
                             random_bytes<int8_t>(w, 2, -127, 127),
                             Tensor::scalar(1.0f),
                             Tensor::scalar<int8_t>(0),
                             Tensor(),
                             Tensor(),
                             Tensor::zeros(DType::i32, {channels})};
      ir::Attrs plain = attrs;
      plain.set("activation", std::string("none"));
      const auto exact = tests::run_kernels(op, plain, in, 1, {0});
      const std::vector<double> sums = exact.back().out[0].to_doubles();
      for (const Scales& s : kScales) {
        in[1] = Tensor::scalar(s.x);
        in[4] = Tensor::scalar(s.w);
        in[6] = to_float ? Tensor() : Tensor::scalar(s.y);
        in[7] = y_zero;
        std::vector<double> want;
        for (double sum : sums) want.push_back(finished(sum, s, relu, y_zero));
        const auto results = tests::run_kernels(op, attrs, in, 1, {0});
        ASSERT_GE(results.size(), 1u);
        for (const auto& r : results)
          expect_values(r.out[0], want, to_float ? 0.0 : 1.0,
                        op + " " + r.kernel + " " + name_of(s, activation));
        tests::expect_as_cpu(
            {.op = op, .in = in, .attrs = attrs, .absolute = to_float ? 0.0 : 1.0, .fed = {0}});
      }
    }
  }
}

TEST(OddScales, MatrixProducts) {
  check_product("qlinear", {5, 17}, {17, 33}, 33, 1);
  check_product("qlinear", {40, 64}, {64, 48}, 48, 1);
}

TEST(OddScales, Convolutions) {
  check_product("qconv_nhwc", {1, 6, 5, 16}, {24, 16, 1, 1}, 24, 1);
  check_product("qconv_nhwc", {1, 7, 6, 5}, {7, 5, 3, 3}, 7, 1);
  check_product("qconv_nhwc", {1, 8, 8, 32}, {32, 1, 3, 3}, 32, 32);
}

TEST(OddScales, Sums) {
  for (const bool relu : {false, true}) {
    for (const Scales& s : kScales) {
      const std::vector<Tensor> in{random_bytes<uint8_t>({3, 77}, 5, 0, 255),
                                   Tensor::scalar(s.x),
                                   Tensor::scalar<uint8_t>(100),
                                   random_bytes<uint8_t>({3, 77}, 6, 0, 255),
                                   Tensor::scalar(s.w),
                                   Tensor::scalar<uint8_t>(4),
                                   Tensor::scalar(s.y),
                                   Tensor::scalar<uint8_t>(60)};
      const ir::Attrs attrs{{"activation", std::string(relu ? "relu" : "none")}};
      // The f32 expansion is the definition: its summands may be infinite, and infinities may cancel to NaN.
      const Tensor want = tests::run_expanded("qadd", attrs, in)[0];
      for (const auto& r : tests::run_kernels("qadd", attrs, in, 1, {0, 3}))
        expect_values(r.out[0], want.to_doubles(), 1.0, "qadd " + name_of(s, relu ? "relu" : "none"));
      tests::expect_as_cpu({.op = "qadd", .in = in, .attrs = attrs, .absolute = 1.0, .fed = {0, 3}}, true);
    }
  }
}

TEST(OddScales, ProductsWhoseScalesAreFed) {
  for (const Scales& s : kScales) {
    const std::vector<Tensor> in{random_bytes<uint8_t>({5, 17}, 1, 0, 255),
                                 Tensor::scalar(s.x),
                                 Tensor::scalar<uint8_t>(120),
                                 random_bytes<int8_t>({17, 9}, 2, -127, 127),
                                 Tensor::scalar(s.w),
                                 Tensor::scalar<int8_t>(0),
                                 Tensor::scalar(s.y),
                                 Tensor::scalar<uint8_t>(30)};
    const auto sums = tests::run_kernels("matmul_integer", {}, {in[0], in[3], in[2], in[5]}, 1, {0});
    std::vector<double> want;
    for (double sum : sums.back().out[0].to_doubles()) want.push_back(finished(sum, s, false, in[7]));
    for (const auto& r : tests::run_kernels("qlinear_matmul", {}, in))
      expect_values(r.out[0], want, 1.0, "qlinear_matmul " + name_of(s, "none"));
    tests::expect_as_cpu({.op = "quantize_linear",
                          .in = {Tensor::scalar(s.x), Tensor::scalar(s.y), Tensor::scalar<uint8_t>(30)},
                          .absolute = 1.0},
                         true);
  }
}

}  // namespace
}  // namespace trireme::ops
