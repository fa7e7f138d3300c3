// One product for queries, keys and values: the same bytes as three products, and one copy of the weights for
// all sizes.
#include "lower/joined_weights.h"

#include <gtest/gtest.h>

#include "engine/session/session.h"
#include "ops/test_eval.h"
#include "tensor/joined.h"
#include "tests/test_device.h"

namespace trireme::engine {
namespace {

using tensor::Tensor;

/// A layer as exporters write it, with 4 heads of 16 channels; keys have no bias.
constexpr const char* kLayer = R"(graph "layer"
  %0 = input "x" : f32[n,s,64]
  %1 = param "wq" : f32[64,64]#zeros
  %2 = param "wk" : f32[64,64]#zeros
  %3 = param "wv" : f32[64,64]#zeros
  %4 = param "bq" : f32[64]#zeros
  %5 = param "bv" : f32[64]#zeros
  %6 = const : i64[4]{0, 0, 4, 16}
  %7 = const : i64[3]{0, 0, 64}
  %8 = const : f32[]{0.25}
  %9 = matmul(%0, %1)
  %10 = add(%9, %4)
  %11 = matmul(%0, %2)
  %12 = matmul(%0, %3)
  %13 = add(%12, %5)
  %14 = reshape(%10, %6)
  %15 = reshape(%11, %6)
  %16 = reshape(%13, %6)
  %17 = transpose(%14) {perm=[0, 2, 1, 3]}
  %18 = transpose(%15) {perm=[0, 2, 3, 1]}
  %19 = transpose(%16) {perm=[0, 2, 1, 3]}
  %20 = matmul(%17, %18)
  %21 = mul(%20, %8)
  %22 = softmax(%21) {axis=-1}
  %23 = matmul(%22, %19)
  %24 = transpose(%23) {perm=[0, 2, 1, 3]}
  %25 = reshape(%24, %7)
  return %25 "y"
)";

Tensor small_noise(const tensor::Dims& dims, uint64_t seed) {
  return ops::testing::random_tensor(tensor::DType::f32, dims, -0.5, 0.5, seed);
}

std::shared_ptr<const PreparedModel> layer(const passes::WeightOptions& weights = {}) {
  ir::Graph graph = ir::parse(kLayer, ops::table());
  uint64_t seed = 1;
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& v = graph.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.kind == ir::ValueKind::param) v.data = small_noise(v.data.dims(), ++seed);
  }
  return std::make_shared<const PreparedModel>(std::move(graph), passes::PassOptions{},
                                               passes::Strategy{.weights = weights});
}

size_t linear_count(const compile::Program& program) {
  size_t count = 0;
  for (const compile::Step& step : program.steps) {
    if (step.op != nullptr && step.op->schema.name == "linear") ++count;
  }
  return count;
}

const Tensor* weight_of(const compile::Program& program) {
  for (const compile::Step& step : program.steps) {
    if (step.op != nullptr && step.op->schema.name == "linear") return &program.root(step.in[1]).constant;
  }
  return nullptr;
}

TEST(JoinedWeights, GiveTheBytesOfThreeProducts) {
  for (const int threads : {1, 2}) {
    for (const int64_t tokens : {1, 5, 40}) {
      const Tensor x = small_noise({2, tokens, 64}, 9);
      Session joined(layer(), {.device = tests::device_under_test(), .threads = threads});
      Session apart(
          layer(),
          {.device = tests::device_under_test(), .threads = threads, .passes = {.off = {"projections"}}});
      EXPECT_EQ(linear_count(joined.prepare({x.dims()})), 1u);
      EXPECT_EQ(linear_count(apart.prepare({x.dims()})), 3u);
      if (tests::device_under_test() == "cpu") {
        EXPECT_TRUE(joined.run({x})[0].same_as(apart.run({x})[0])) << tokens << " tokens";
      }
    }
  }
}

TEST(JoinedWeights, AreSharedBySizesAndTakeNoMemoryOncePacked) {
  Session session(layer(), {.threads = 1});
  const Tensor* one = weight_of(session.prepare({{1, 4, 64}}));
  const Tensor first = *one, second = *weight_of(session.prepare({{1, 7, 64}}));
  EXPECT_EQ(first.dims(), (tensor::Dims{64, 192}));
  EXPECT_EQ(first.raw(), second.raw());
  EXPECT_TRUE(tensor::is_joined(first));
}

TEST(JoinedWeights, HaveContentForKernelsThatReadThem) {
  const Tensor x = small_noise({2, 5, 64}, 9);
  Session plain(layer(), {.threads = 2, .only_kernel = "reference"}), fast(layer(), {.threads = 2});
  const std::vector<double> a = plain.run({x})[0].to_doubles(), b = fast.run({x})[0].to_doubles();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5);
}

TEST(JoinedWeights, AreRoundedAsTheirPartsAre) {
  const Tensor x = small_noise({2, 5, 64}, 9);
  for (const auto precision : {passes::Precision::bf16, passes::Precision::f16}) {
    Session joined(layer(), {.threads = 2, .strategy = {.precision = {.compute = precision}}});
    Session apart(layer(), {.threads = 2,
                            .passes = {.off = {"projections"}},
                            .strategy = {.precision = {.compute = precision}}});
    const std::vector<double> a = joined.run({x})[0].to_doubles(), b = apart.run({x})[0].to_doubles();
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6);
  }
  const passes::WeightOptions bytes{
      .weights = passes::WeightBits::int8, .weight_group = 32, .least_elements = 1};
  Session small(layer(bytes), {.threads = 2}), large(layer(), {.threads = 2});
  const std::vector<double> a = small.run({x})[0].to_doubles(), b = large.run({x})[0].to_doubles();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-2);
}

}  // namespace
}  // namespace trireme::engine
