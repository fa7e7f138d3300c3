// separable_conv_nhwc against its expansion, with and without optional stages and operands.
#include "ops/test_grad.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using tests::random_tensor;
using Ints = std::vector<int64_t>;

struct SeparableCase {
  int64_t n, h, w, in, c, out, k, stride;
  bool expands, biased, residual;
};

std::vector<SeparableCase> separable_cases() {
  return {{1, 14, 14, 16, 96, 24, 3, 2, true, true, false}, {2, 7, 9, 24, 72, 24, 3, 1, true, true, true},
          {1, 5, 6, 8, 40, 12, 5, 1, true, false, true},    {3, 8, 7, 20, 20, 33, 3, 1, false, true, false},
          {1, 1, 1, 4, 9, 3, 3, 1, true, true, true},       {0, 4, 4, 4, 9, 3, 1, 1, true, true, false}};
}

std::vector<Tensor> separable_operands(const SeparableCase& c) {
  const int64_t oh = (c.h + 2 * (c.k / 2) - c.k) / c.stride + 1,
                ow = (c.w + 2 * (c.k / 2) - c.k) / c.stride + 1;
  const int64_t middle = c.expands ? c.c : c.in;
  return {random_tensor({c.n, c.h, c.w, c.in}, 1),
          random_tensor({middle, 1, c.k, c.k}, 2),
          random_tensor({c.out, middle, 1, 1}, 4),
          c.biased ? random_tensor({middle}, 3) : Tensor(),
          c.biased ? random_tensor({c.out}, 5) : Tensor(),
          c.expands ? random_tensor({c.c, c.in, 1, 1}, 6) : Tensor(),
          c.expands && c.biased ? random_tensor({c.c}, 7) : Tensor(),
          c.residual ? random_tensor({c.n, oh, ow, c.out}, 8) : Tensor()};
}

ir::Attrs separable_attrs(const SeparableCase& c) {
  const int64_t pad = c.k / 2;
  return {{"strides", Ints{c.stride, c.stride}},
          {"pads", Ints{pad, pad, pad, pad}},
          {"expand_activation", std::string("clip")},
          {"expand_lo", 0.0},
          {"expand_hi", 1.5},
          {"depthwise_activation", std::string("silu")},
          {"activation", std::string("relu")},
          {"act_before_residual", int64_t{1}}};
}

TEST(SeparableConv, EqualsItsExpansion) {
  for (const SeparableCase& c : separable_cases()) {
    const std::vector<Tensor> in = separable_operands(c);
    const std::vector<double> want =
        tests::run_expanded("separable_conv_nhwc", separable_attrs(c), in)[0].to_doubles();
    for (int threads : {1, 3}) {
      const auto results = tests::run_kernels("separable_conv_nhwc", separable_attrs(c), in, 1, {}, threads);
      ASSERT_FALSE(results.empty());
      for (const auto& r : results)
        tests::expect_close(r.out[0], want, 1e-5, 1e-5,
                            base::concat(r.kernel, " ", c.h, " x ", c.w, " x ", c.c));
    }
  }
}

TEST(SeparableConv, RefusesWeightsThatAreFed) {
  const SeparableCase c = separable_cases()[0];
  EXPECT_TRUE(
      tests::run_kernels("separable_conv_nhwc", separable_attrs(c), separable_operands(c), 1, {2}).empty());
}

}  // namespace
}  // namespace trireme::ops
