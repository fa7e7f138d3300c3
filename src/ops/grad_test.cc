// The backward pass: sums over several uses, undoing broadcasts, errors for gradients that do not exist.
#include "ops/grad.h"

#include "ops/test_grad.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::expect_gradient;
using testing::random_tensor;
using testing::run_graph;

TEST(Backpropagate, NamesTheNodeThatHasNoGradient) {
  ir::Graph graph;
  const ValueId x = graph.add_input("x", {DType::f64, {3}});
  const ValueId y = graph.add1(table().need("floor"), {x}, {}, "layer7");
  std::vector<char> wanted{1};
  std::vector<ValueId> grads(graph.values().size(), ir::kNoValue);
  grads[index(y)] = graph.add_constant(random_tensor(DType::f64, {3}, -1, 1));
  try {
    backpropagate(graph, 0, wanted, grads);
    FAIL() << "floor was differentiated";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::unsupported);
    EXPECT_NE(std::string(e.what()).find("layer7"), std::string::npos) << e.what();
  }
}

TEST(Backpropagate, NamesTheNodeWhoseExtentsDependOnData) {
  ir::Graph graph;
  const ValueId x = graph.add_input("x", {DType::f64, {3}});
  const ValueId target = graph.add_input("target", {DType::i64, {1}});
  const ValueId y = graph.add1(table().need("expand"), {x, target}, {}, "open");
  const ValueId z = graph.add1(table().need("exp"), {y}, {}, "behind");
  std::vector<char> wanted{1};
  std::vector<ValueId> grads(graph.values().size(), ir::kNoValue);
  grads[index(z)] = z;
  try {
    backpropagate(graph, 0, wanted, grads);
    FAIL() << "a value of unknown extents was differentiated";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::unsupported);
    EXPECT_NE(e.message().find("'behind'"), std::string::npos) << e.message();
    EXPECT_NE(e.message().find("'open'"), std::string::npos) << e.message();
  }
}

TEST(GradBuilder, ReducesToTheShapeThatWasBroadcast) {
  ir::Graph graph;
  const ValueId g = graph.add_input("g", {DType::f64, {2, 3, 4}});
  const ir::Node node{.op = &table().need("identity"), .attrs = {}, .in = {g}, .out = {}, .from = {}};
  GradBuilder b(graph, node, {});
  graph.add_output(b.reduce_to(g, {3, 1}), "a");
  graph.add_output(b.reduce_to(g, {2, 3, 4}), "b");
  graph.sort();
  const Tensor ones = Tensor::from<double>({2, 3, 4}, std::vector<double>(24, 1.0));
  const auto out = run_graph(graph, {ones});
  EXPECT_EQ(out[0].dims(), (tensor::Dims{3, 1}));
  for (double v : out[0].data<double>()) EXPECT_EQ(v, 8);
  EXPECT_TRUE(out[1].same_as(ones));
}

}  // namespace
}  // namespace trireme::ops
