// quantize_linear and dequantize_linear: vector and reference kernels against the formula.
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;

TEST(QuantizeLinear, KernelsRoundHalfToEvenAndSaturatePerAxis) {
  const Tensor x = tests::random_tensor({3, 4, 21}, 1, 3.0f);
  const Tensor scale = Tensor::from<float>({4}, {0.02f, 0.5f, 0.25f, 0.01f}),
               zero = Tensor::from<uint8_t>({4}, {0, 128, 255, 7});
  std::vector<double> want, back;
  for (size_t i = 0; i < 252; ++i) {
    const size_t c = i / 21 % 4;
    const float quotient = x.data<float>()[i] / scale.data<float>()[c];
    want.push_back(std::clamp(std::nearbyint(double(quotient)) + zero.to_doubles()[c], 0.0, 255.0));
    back.push_back((want.back() - zero.to_doubles()[c]) * scale.to_doubles()[c]);
  }
  const auto results = tests::run_kernels("quantize_linear", {{"axis", int64_t{1}}}, {x, scale, zero});
  ASSERT_EQ(results.size(), 2u);
  for (const auto& r : results) {
    tests::expect_close(r.out[0], want, 0, 0, r.kernel);
    for (const auto& d :
         tests::run_kernels("dequantize_linear", {{"axis", int64_t{1}}}, {r.out[0], scale, zero})) {
      tests::expect_close(d.out[0], back, 1e-6, 1e-6, d.kernel);
    }
  }
}

TEST(QuantizeLinear, TiesGoToEven) {
  const Tensor x = Tensor::from<float>({6}, {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 1e9f});
  for (const auto& r :
       tests::run_kernels("quantize_linear", {}, {x, Tensor::scalar(1.0f), Tensor::scalar(int8_t{0})})) {
    tests::expect_close(r.out[0], {0, 2, 2, 0, -2, 127}, 0, 0, r.kernel);
  }
}

/// Lengths around pieces and vectors; values of one sign, ties, and what has no range.
TEST(DynamicQuantizeLinear, KernelsAgreeBitForBit) {
  std::vector<Tensor> inputs;
  for (int64_t n : {0, 1, 3, 7, 8, 33, 1000, 8192, 70001}) {
    for (float shift : {-2.0f, 0.0f, 5.0f}) {
      Tensor x = tests::random_tensor({n}, static_cast<uint32_t>(n));
      for (float& v : x.mutable_data<float>()) v += shift;
      inputs.push_back(x);
    }
  }
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (const std::vector<float>& x : std::vector<std::vector<float>>{{0, 0},
                                                                     {-0.0f},
                                                                     {1e-45f, -1e-45f},
                                                                     {3e38f, -3e38f},
                                                                     {inf, 1},
                                                                     {-inf, 1},
                                                                     {1, nan},
                                                                     {-inf, inf, nan}})
    inputs.push_back(Tensor::from<float>({static_cast<int64_t>(x.size())}, x));
  for (const Tensor& x : inputs) {
    const auto results = tests::run_kernels("dynamic_quantize_linear", {}, {x}, 3);
    ASSERT_EQ(results.size(), 2u);
    ASSERT_EQ(results[1].kernel, "reference");
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(results[0].out[i].to_doubles(), results[1].out[i].to_doubles()) << i << " " << x.elements();
  }
}

TEST(QLinearMatmul, ScalesOfLinesFitAnyRank) {
  const auto add = [](const tensor::Shape& shape) {
    ir::Graph g;
    const auto lines = [&](tensor::DType type) { return g.add_constant(Tensor::zeros(type, {9})); };
    const auto one = [&](tensor::DType type) { return g.add_constant(Tensor::zeros(type, {})); };
    const ir::ValueId a = g.add_input("a", {tensor::DType::u8, shape}),
                      b = g.add_input("b", {tensor::DType::u8, shape});
    const ir::ValueId scales = lines(tensor::DType::f32), zeros = lines(tensor::DType::u8);
    return g
        .type(g.add1(table().need("qlinear_matmul"),
                     {a, scales, zeros, b, scales, zeros, one(tensor::DType::f32), one(tensor::DType::u8)}))
        .to_string();
  };
  EXPECT_EQ(add(tensor::Shape::unknown_rank()), "u8[*]");
  EXPECT_EQ(add({9, 9}), "u8[9,9]");
  EXPECT_THROW(add({8, 8}), base::Error);
}

}  // namespace
}  // namespace trireme::ops
