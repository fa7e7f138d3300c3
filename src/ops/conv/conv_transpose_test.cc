// conv_transpose: every kernel against the plain one in double over random attributes; the same bits for any
// team and any other images in the batch.
#include <cstring>
#include <random>

#include "ops/conv/against_double.h"
#include "ops/test_eval.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using Ints = std::vector<int64_t>;

struct TransposeCase {
  int64_t n, h, w, c, oc, kh, kw, stride_h, stride_w, pad, extra, group;
  bool biased;
};

ir::Attrs transpose_attrs(const TransposeCase& c) {
  return {{"strides", Ints{c.stride_h, c.stride_w}},
          {"pads", Ints{c.pad, c.pad, c.pad, c.pad}},
          {"output_padding", Ints{c.extra, 0}},
          {"group", c.group}};
}

std::vector<Tensor> transpose_operands(const TransposeCase& c) {
  return {tests::random_tensor({c.n, c.c, c.h, c.w}, 1),
          tests::random_tensor({c.c, c.oc / c.group, c.kh, c.kw}, 2),
          c.biased ? tests::random_tensor({c.oc}, 3) : Tensor()};
}

/// Upsampling layers of U-Net, DCGAN and segmentation heads at small extents, and odd ones.
std::vector<TransposeCase> transpose_cases() {
  std::vector<TransposeCase> all = {
      {2, 7, 9, 32, 16, 2, 2, 2, 2, 0, 0, 1, true}, {1, 5, 4, 24, 40, 4, 4, 2, 2, 1, 0, 1, true},
      {3, 6, 5, 17, 9, 3, 3, 2, 2, 1, 1, 1, false}, {1, 4, 4, 21, 21, 16, 16, 8, 8, 4, 0, 21, true},
      {1, 3, 5, 8, 6, 1, 2, 3, 3, 0, 0, 1, true},   {2, 1, 1, 20, 33, 4, 4, 1, 1, 0, 0, 1, true},
      {2, 6, 7, 12, 18, 3, 3, 2, 1, 1, 0, 3, true}, {1, 5, 5, 16, 1, 4, 4, 2, 2, 1, 0, 1, true}};
  std::mt19937 generator(3);
  const auto pick = [&](std::initializer_list<int64_t> from) {
    return *(from.begin() + generator() % from.size());
  };
  while (all.size() < 80) {
    TransposeCase c{pick({1, 2}),
                    pick({1, 2, 5, 8}),
                    pick({1, 3, 6, 9}),
                    0,
                    0,
                    pick({1, 2, 3, 4, 5}),
                    pick({1, 2, 3, 4}),
                    pick({1, 2, 3}),
                    pick({1, 2, 4}),
                    pick({0, 0, 1, 2}),
                    0,
                    pick({1, 1, 2, 3}),
                    pick({0, 1}) == 1};
    c.c = c.group * pick({1, 3, 8, 17});
    c.oc = c.group * pick({1, 2, 15, 18});
    c.extra = c.stride_h > 1 ? pick({0, 1}) : 0;
    const int64_t high = (c.h - 1) * c.stride_h + c.kh + c.extra - 2 * c.pad;
    const int64_t broad = (c.w - 1) * c.stride_w + c.kw - 2 * c.pad;
    if (high > 0 && broad > 0) all.push_back(c);
  }
  return all;
}

TEST(ConvTranspose, EveryKernelAgreesWithDouble) {
  int fast = 0;
  for (const TransposeCase& c : transpose_cases()) {
    const std::vector<Tensor> in = transpose_operands(c);
    std::vector<Tensor> exact;
    for (const Tensor& t : in) exact.push_back(testing::in_double(t));
    const auto reference = tests::run_kernels("conv_transpose", transpose_attrs(c), exact);
    ASSERT_FALSE(reference.empty());
    const std::vector<double> want = reference.back().out[0].to_doubles();
    const auto first = tests::run_kernels("conv_transpose", transpose_attrs(c), in, 1, {}, 1);
    for (const std::vector<size_t>& fed : {std::vector<size_t>{}, {1}}) {
      const auto results = tests::run_kernels("conv_transpose", transpose_attrs(c), in, 1, fed, 3);
      ASSERT_EQ(results.size(), first.size());
      for (size_t k = 0; k < results.size(); ++k) {
        const std::string name =
            base::concat(results[k].kernel, " ", c.h, " x ", c.w, " kernel ", c.kh, " x ", c.kw, " stride ",
                         c.stride_h, " x ", c.stride_w, " pad ", c.pad);
        tests::expect_close(results[k].out[0], want, 1e-4, 1e-5, name);
        EXPECT_EQ(std::memcmp(results[k].out[0].raw(), first[k].out[0].raw(), want.size() * sizeof(float)), 0)
            << name << ": a team or packing ahead changes bits";
        fast += results[k].kernel == "phases";
      }
    }
  }
  EXPECT_GT(fast, 120);
}

/// One and three axes with random windows, strides, dilation in depth, groups and output padding.
TEST(ConvTranspose, OneAndThreeAxesAgreeWithDouble) {
  std::mt19937 random(13);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int fast = 0;
  for (int trial = 0; trial < 80; ++trial) {
    const size_t axes = trial % 2 == 0 ? 1 : 3;
    const int64_t group = draw(0, 3) == 0 ? 2 : 1, c = group * draw(1, 18), oc = group * draw(1, 18);
    tensor::Dims x{draw(1, 2), c}, w{c, oc / group};
    Ints strides, dilations, begin, end, extra;
    for (size_t i = 0; i < axes; ++i) {
      x.push_back(draw(1, axes == 1 ? 40 : 5));
      w.push_back(draw(1, axes == 1 ? 9 : 4));
      strides.push_back(draw(1, 3));
      dilations.push_back(axes == 3 && i == 0 && draw(0, 3) == 0 ? 2 : 1);
      const int64_t reach = (x.back() - 1) * strides.back() + (w.back() - 1) * dilations.back() + 1;
      begin.push_back(draw(0, std::min<int64_t>(w.back() - 1, (reach - 1) / 2)));
      end.push_back(draw(0, std::min<int64_t>(w.back() - 1, (reach - 1) / 2)));
      extra.push_back(strides.back() > 1 ? draw(0, 1) : 0);
    }
    begin.insert(begin.end(), end.begin(), end.end());
    const ir::Attrs attrs{{"strides", strides},
                          {"dilations", dilations},
                          {"pads", begin},
                          {"output_padding", extra},
                          {"group", group}};
    const std::vector<Tensor> in{tests::random_tensor(x, 1), tests::random_tensor(w, 2),
                                 draw(0, 1) == 0 ? Tensor() : tests::random_tensor({oc}, 3)};
    std::vector<Tensor> exact;
    for (const Tensor& t : in) exact.push_back(testing::in_double(t));
    SCOPED_TRACE(base::concat(tensor::to_string(x), " by ", tensor::to_string(w), " ", attrs.to_string()));
    const auto want = tests::run_kernels("conv_transpose", attrs, exact).back().out[0].to_doubles();
    const auto alone = tests::run_kernels("conv_transpose", attrs, in, 1, {}, 1);
    const auto team = tests::run_kernels("conv_transpose", attrs, in, 1, {}, 3);
    const auto fed = tests::run_kernels("conv_transpose", attrs, in, 1, {1}, 3);
    ASSERT_EQ(fed.size(), alone.size());
    for (size_t k = 0; k < alone.size(); ++k) {
      tests::expect_close(alone[k].out[0], want, 1e-4, 1e-5, alone[k].kernel);
      EXPECT_TRUE(team[k].out[0].same_as(alone[k].out[0])) << alone[k].kernel;
      EXPECT_TRUE(fed[k].out[0].same_as(alone[k].out[0])) << alone[k].kernel << ": weights that are fed";
      fast += alone[k].kernel == "phases";
    }
  }
  EXPECT_GE(fast, 70);
}

/// One phase for each of nine million remainders would take longer to plan than the result to compute.
TEST(ConvTranspose, PhasesOfVeryLargeStridesAreNotWalked) {
  const ir::Attrs attrs{{"strides", Ints{3000, 3000}}};
  const std::vector<Tensor> in{tests::random_tensor({1, 2, 1, 1}, 1), tests::random_tensor({2, 1, 1, 1}, 2)};
  const auto results = tests::run_kernels("conv_transpose", attrs, in);
  ASSERT_FALSE(results.empty());
  for (const auto& r : results) EXPECT_NE(r.kernel, "phases");
  const auto fewer = tests::run_kernels("conv_transpose", {{"strides", Ints{64, 64}}}, in);
  ASSERT_EQ(fewer[0].kernel, "phases");
  tests::expect_close(fewer[0].out[0], results[0].out[0].to_doubles(), 1e-6, 1e-6, "one point");
}

TEST(ConvTranspose, AnImageDoesNotDependOnItsBatchMates) {
  const TransposeCase two = transpose_cases()[0];
  TransposeCase one = two;
  one.n = 1;
  const std::vector<Tensor> in = transpose_operands(two),
                            single = transpose_operands(one);  // the first image is the same
  const auto both = tests::run_kernels("conv_transpose", transpose_attrs(two), in);
  const auto alone = tests::run_kernels("conv_transpose", transpose_attrs(one), single);
  ASSERT_EQ(both[0].kernel, "phases");
  EXPECT_EQ(std::memcmp(both[0].out[0].raw(), alone[0].out[0].raw(),
                        static_cast<size_t>(alone[0].out[0].elements()) * sizeof(float)),
            0);
}

}  // namespace
}  // namespace trireme::ops
