// qlinear, qconv_nhwc, qadd: every kernel against naive integer loops in double, and against the expansion.
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::Tensor;
using tests::random_bytes;

struct ConvCase {
  int64_t n, h, w, c, oc, k, stride, pad, group;
  bool is_signed, relu;
};

Tensor floats(std::vector<float> v) {
  return Tensor::from<float>({static_cast<int64_t>(v.size())}, std::span<const float>(v));
}

/// One case's operands x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias.
template <class X>
std::vector<Tensor> operands(const Dims& x, const Dims& w, int64_t channels, X x_zero, X y_zero) {
  std::vector<float> scales;
  for (int64_t i = 0; i < channels; ++i) scales.push_back(0.01f + 0.001f * static_cast<float>(i % 7));
  Tensor bias = Tensor::empty(tensor::DType::i32, {channels});
  for (int64_t i = 0; i < channels; ++i)
    bias.mutable_data<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i * 37 % 200 - 100);
  const bool s = std::is_signed_v<X>;
  return {random_bytes<X>(x, 1, s ? -128 : 0, s ? 127 : 255),
          Tensor::scalar(0.02f),
          Tensor::scalar(x_zero),
          random_bytes<int8_t>(w, 2, -127, 127),
          floats(scales),
          Tensor::zeros(tensor::DType::i8, {channels}),
          Tensor::scalar(0.05f),
          Tensor::scalar(y_zero),
          bias};
}

double quantized(double real, const std::vector<Tensor>& in, bool relu) {
  if (relu) real = std::max(real, 0.0);
  const double low = in[7].dtype() == tensor::DType::i8 ? -128 : 0;
  return std::clamp(std::nearbyint(real / in[6].to_doubles()[0]) + in[7].to_doubles()[0], low, low + 255);
}

std::vector<double> naive_conv(const ConvCase& c, const std::vector<Tensor>& in) {
  const auto x = in[0].to_ints(), w = in[3].to_ints(), bias = in[8].to_ints();
  const auto scale = in[4].to_doubles();
  const int64_t xz = in[2].to_ints()[0], each = c.c / c.group;
  const int64_t oh = (c.h + 2 * c.pad - c.k) / c.stride + 1, ow = (c.w + 2 * c.pad - c.k) / c.stride + 1;
  std::vector<double> y;
  for (int64_t at = 0; at < c.n * oh * ow * c.oc; ++at) {
    const int64_t o = at % c.oc, px = at / c.oc % ow, py = at / c.oc / ow % oh, n = at / c.oc / ow / oh;
    double sum = double(bias[size_t(o)]);
    for (int64_t i = 0; i < c.k; ++i) {
      for (int64_t j = 0; j < c.k; ++j) {
        const int64_t ih = py * c.stride - c.pad + i, iw = px * c.stride - c.pad + j;
        if (ih < 0 || ih >= c.h || iw < 0 || iw >= c.w) continue;
        for (int64_t l = 0; l < each; ++l) {
          const int64_t channel = o / (c.oc / c.group) * each + l;
          sum += double(x[size_t(((n * c.h + ih) * c.w + iw) * c.c + channel)] - xz) *
                 double(w[size_t(((o * each + l) * c.k + i) * c.k + j)]);
        }
      }
    }
    y.push_back(quantized(sum * in[1].to_doubles()[0] * scale[size_t(o)], in, c.relu));
  }
  return y;
}

template <class X>
void check_conv(const ConvCase& c, X x_zero, X y_zero) {
  const auto in = operands<X>({c.n, c.h, c.w, c.c}, {c.oc, c.c / c.group, c.k, c.k}, c.oc, x_zero, y_zero);
  const ir::Attrs attrs{{"strides", std::vector<int64_t>{c.stride, c.stride}},
                        {"pads", std::vector<int64_t>{c.pad, c.pad, c.pad, c.pad}},
                        {"group", c.group},
                        {"activation", std::string(c.relu ? "relu" : "none")}};
  const std::vector<double> want = naive_conv(c, in);
  const auto results = tests::run_kernels("qconv_nhwc", attrs, in, 1, {0});
  ASSERT_GE(results.size(), 2u);
  // In f32, a tie of the scaled sum may round the other way, by one step at most.
  for (const auto& r : results) tests::expect_close(r.out[0], want, 0, 1.0, r.kernel);
  tests::expect_close(tests::run_expanded("qconv_nhwc", attrs, in)[0], want, 0, 1.0, "expand");
}

TEST(QConv, EveryKernelMatchesNaiveLoops) {
  for (const ConvCase& c :
       {ConvCase{2, 7, 9, 16, 24, 1, 1, 0, 1, false, true},
        ConvCase{1, 8, 8, 32, 32, 3, 1, 1, 32, false, true}, ConvCase{1, 9, 7, 5, 7, 3, 2, 1, 1, true, false},
        ConvCase{2, 6, 6, 8, 12, 3, 1, 0, 4, false, false},
        ConvCase{1, 11, 5, 70, 70, 5, 2, 2, 70, true, false},
        ConvCase{1, 1, 1, 3, 1, 1, 1, 0, 1, false, false}}) {
    if (c.is_signed) {
      check_conv<int8_t>(c, -3, 5);
    } else {
      check_conv<uint8_t>(c, 128, 100);
    }
  }
}

/// A dilated layer reads pixels, a dense one padded lines, which levels without products of four bytes pack
/// differently.
TEST(QConv, WeightsThatTwoLayersShareArePackedForEach) {
  const auto in = operands<uint8_t>({1, 8, 9, 5}, {7, 5, 3, 3}, 7, 128, 100);
  ir::Attrs dilated;
  dilated.set("dilations", std::vector<int64_t>{1, 2});
  const std::vector<ir::Attrs> layers{ir::Attrs(), dilated};
  const std::vector<Tensor> together = tests::run_sharing_packs("qconv_nhwc", layers, in);
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto alone = tests::run_kernels("qconv_nhwc", layers[i], in, 1, {0});
    EXPECT_EQ(alone[0].kernel, "packed_8_bit");
    EXPECT_TRUE(together[i].same_as(alone[0].out[0])) << layers[i].to_string();
  }
}

TEST(QLinear, EveryKernelMatchesNaiveLoops) {
  for (const auto& [m, k, n] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {5, 17, 33}, {32, 64, 48}, {3, 100, 7}}) {
    const auto in = operands<uint8_t>({m, k}, {k, n}, n, 120, 30);
    const auto x = in[0].to_ints(), w = in[3].to_ints(), bias = in[8].to_ints();
    std::vector<double> want;
    for (int64_t i = 0; i < m * n; ++i) {
      double sum = double(bias[size_t(i % n)]);
      for (int64_t l = 0; l < k; ++l)
        sum += double(x[size_t(i / n * k + l)] - 120) * double(w[size_t(l * n + i % n)]);
      want.push_back(quantized(sum * double(0.02f) * in[4].to_doubles()[size_t(i % n)], in, false));
    }
    const auto results = tests::run_kernels("qlinear", {}, in, 1, {0});
    ASSERT_EQ(results.size(), 2u);
    for (const auto& r : results) tests::expect_close(r.out[0], want, 0, 1.0, r.kernel);
    tests::expect_close(tests::run_expanded("qlinear", {}, in)[0], want, 0, 1.0, "expand");
  }
}

TEST(QAdd, MatchesTheFormula) {
  const Tensor a = random_bytes<uint8_t>({3, 77}, 5, 0, 255), b = random_bytes<int8_t>({3, 77}, 6, -128, 127);
  const std::vector<Tensor> in{a,
                               Tensor::scalar(0.03f),
                               Tensor::scalar(uint8_t{100}),
                               b,
                               Tensor::scalar(0.07f),
                               Tensor::scalar(int8_t{-4}),
                               Tensor::scalar(0.05f),
                               Tensor::scalar(uint8_t{60})};
  std::vector<double> want;
  for (size_t i = 0; i < 231; ++i) {
    const double real = (a.to_doubles()[i] - 100) * double(0.03f) + (b.to_doubles()[i] + 4) * double(0.07f);
    want.push_back(quantized(real, in, true));
  }
  const ir::Attrs attrs{{"activation", std::string("relu")}};
  for (const auto& r : tests::run_kernels("qadd", attrs, in, 1, {0, 3}))
    tests::expect_close(r.out[0], want, 0, 1.0, r.kernel);
  tests::expect_close(tests::run_expanded("qadd", attrs, in)[0], want, 0, 1.0, "expand");
}

}  // namespace
}  // namespace trireme::ops
