// Folding batch norms keeps the names of weights apart, by which the programs of a rank share them.
#include "passes/fuse/batch_norm.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "ops/test_grad.h"

namespace trireme::passes {
namespace {

using tensor::DType;
using tensor::Tensor;

/// Three convolutions read one weight: two before norms of their own, which have one name, and one alone.
ir::Graph sharing() {
  ir::Graph g = ir::parse(R"(graph "sharing"
  %0 = input "x" : f32[1,2,3,3]
  %1 = param "w" : f32[2,2,1,1]{1, -2, 0.5, 3}
  %2 = param "scale" : f32[2]{1.5, -2}
  %3 = param "other_scale" : f32[2]{0.5, 4}
  %4 = param "shift" : f32[2]{1, -1}
  %5 = param "mean" : f32[2]{0.25, -0.5}
  %6 = param "var" : f32[2]{0.5, 2}
  %7 = conv(%0, %1)
  %8 = batch_norm(%7, %2, %4, %5, %6)  # norm
  %9 = conv(%8, %1)
  %10 = batch_norm(%9, %3, %4, %5, %6)  # norm
  %11 = conv(%10, %1)
  return %11 "y"
)",
                          ops::table());
  g.sort();
  return g;
}

TEST(FoldBatchNorm, ConvolutionsThatShareAWeightGetOneEach) {
  ir::Graph g = sharing();
  const Tensor x = ops::testing::random_tensor(DType::f32, {1, 2, 3, 3}, -1, 1);
  const std::vector<double> want = ops::testing::run_graph(g, {x})[0].to_doubles();
  EXPECT_EQ(fold_batch_norm(g), 2u);
  g.sort();
  ir::verify(g);
  const std::vector<double> got = ops::testing::run_graph(g, {x})[0].to_doubles();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4);
  std::set<std::string> names;
  size_t weights = 0, biases = 0;
  for (const ir::Value& v : g.values()) {
    if (v.kind != ir::ValueKind::param) continue;
    EXPECT_TRUE(names.insert(v.name).second) << v.name;
    weights += v.name.starts_with("w") ? 1 : 0;
    biases += v.name.starts_with("norm.bias") ? 1 : 0;
  }
  EXPECT_EQ(weights, 3u);
  EXPECT_EQ(biases, 2u);
  EXPECT_TRUE(names.contains("w"));  // the one that is as the file has it
}

}  // namespace
}  // namespace trireme::passes
