// conv and conv_grad_w of planes through the channels-last kernels: random layers of one to three axes
// against the plain loops in double, the same bits for any team, and no layer of a transposed convolution's
// step left to the plain loops.
#include <random>

#include "ops/conv/against_double.h"
#include "ops/test_eval.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

struct PlanesLayer {
  Dims x, w, y;  // channels first
  ir::Attrs attrs;
};

PlanesLayer random_planes(std::mt19937& random, size_t axes) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const int64_t groups = Ints{1, 1, 2, 3}[static_cast<size_t>(draw(0, 3))];
  const int64_t c = groups * draw(1, 20), oc = groups * draw(1, 20), n = draw(1, 3);
  PlanesLayer l{.x = {n, c}, .w = {oc, c / groups}, .y = {n, oc}, .attrs = {}};
  Ints strides, dilations, begin, end;
  for (size_t i = 0; i < axes; ++i) {
    const int64_t kernel = draw(1, 4);
    dilations.push_back(draw(0, 3) == 0 ? 2 : 1);
    strides.push_back(draw(1, 2));
    begin.push_back(draw(0, kernel - 1));
    end.push_back(draw(0, kernel - 1));
    const int64_t reach = (kernel - 1) * dilations.back() + 1;
    l.x.push_back(reach + draw(0, axes == 1 ? 60 : 9));
    l.w.push_back(kernel);
    l.y.push_back((l.x.back() + begin.back() + end.back() - reach) / strides.back() + 1);
  }
  begin.insert(begin.end(), end.begin(), end.end());
  l.attrs = {{"strides", strides}, {"dilations", dilations}, {"pads", begin}, {"group", groups}};
  return l;
}

/// How many of the layer's two ops the fast kernel takes; each kernel agrees with the loops in double.
int expect_right(const std::string& op, const ir::Attrs& attrs, const std::vector<Tensor>& in,
                 const std::vector<size_t>& fed) {
  std::vector<Tensor> exact;
  for (const Tensor& t : in) exact.push_back(testing::in_double(t));
  const Tensor want = testing::run(op, exact, attrs)[0];
  const auto alone = tests::run_kernels(op, attrs, in, 1, fed, 1);
  const auto team = tests::run_kernels(op, attrs, in, 1, fed, 3);
  int fast = 0;
  for (size_t k = 0; k < alone.size(); ++k) {
    EXPECT_LT(testing::largest_difference(alone[k].out[0], want), 1e-5) << op << " " << alone[k].kernel;
    EXPECT_TRUE(team[k].out[0].same_as(alone[k].out[0])) << op << " " << alone[k].kernel << ": team";
    fast += alone[k].kernel == "channels_last";
  }
  return fast;
}

TEST(ConvChannelsFirst, AgreesWithDoubleOverRandomLayers) {
  std::mt19937 random(5);
  int fast = 0, layers = 0;
  for (int trial = 0; trial < 90; ++trial) {
    const PlanesLayer l = random_planes(random, 1 + static_cast<size_t>(trial % 3));
    SCOPED_TRACE(
        base::concat(tensor::to_string(l.x), " by ", tensor::to_string(l.w), " ", l.attrs.to_string()));
    const Tensor x = tests::random_tensor(l.x, 1), w = tests::random_tensor(l.w, 2);
    fast += expect_right("conv", l.attrs, {x, w, tests::random_tensor({l.w[0]}, 3)}, {0});
    fast += expect_right("conv", l.attrs, {x, w}, {0, 1});
    ir::Attrs to_w = l.attrs;
    to_w.set("kernel_shape", Ints(l.w.begin() + 2, l.w.end()));
    fast += expect_right("conv_grad_w", to_w, {x, tests::random_tensor(l.y, 4)}, {0, 1});
    layers += 3;
  }
  // The loops keep what no kernel takes with one filter as with many, and results in depth of padding alone.
  EXPECT_GE(fast, layers * 5 / 6);
}

TEST(ConvChannelsFirst, AnImageDoesNotDependOnItsBatchMates) {
  const ir::Attrs attrs{{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}};
  const Tensor two = tests::random_tensor({2, 9, 11, 13}, 1), w = tests::random_tensor({18, 9, 3, 3}, 2);
  Tensor one = Tensor::empty(tensor::DType::f32, {1, 9, 11, 13});
  std::memcpy(one.mutable_raw(), two.raw(), static_cast<size_t>(one.bytes()));
  const auto both = tests::run_kernels("conv", attrs, {two, w}, 1, {0, 1});
  const auto alone = tests::run_kernels("conv", attrs, {one, w}, 1, {0, 1});
  ASSERT_EQ(both[0].kernel, "channels_last");
  EXPECT_EQ(
      std::memcmp(both[0].out[0].raw(), alone[0].out[0].raw(), static_cast<size_t>(alone[0].out[0].bytes())),
      0);
}

}  // namespace
}  // namespace trireme::ops
