// Which expands vanish before elementwise operators: none before those that want operands of equal extents.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "ir/notation.h"
#include "ops/test_grad.h"
#include "passes/cleanup/cleanup.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::DType;
using tensor::Tensor;

constexpr std::array kTypes{DType::f32, DType::i64, DType::boolean};

ValueId add(ir::Graph& g, std::string_view op, std::vector<ValueId> in, ir::Attrs attrs = {}) {
  return g.add1(ops::table().need(op), std::move(in), std::move(attrs));
}

ValueId ints(ir::Graph& g, std::vector<int64_t> values) {
  return g.add_constant(ops::testing::ints(std::move(values)));
}

/// Operands of the op that have dimensions of their own.
size_t spreading(const ir::OpSchema& op) {
  size_t count = 0;
  while (count < std::min<size_t>(op.max_in, 3) && ir::spreads_over_results(op, count)) ++count;
  return count;
}

/// The op of operands [2, 3], of which the one numbered `repeated` is expanded from [1, 3]; an empty graph if
/// the op does not take these types.
ir::Graph with_expand(const ir::OpDef& op, const std::vector<DType>& types, size_t repeated) {
  ir::Graph g;
  std::vector<ValueId> in;
  for (size_t i = 0; i < types.size(); ++i) {
    const tensor::Shape shape{i == repeated ? 1 : 2, 3};
    const ValueId x = g.add_input(base::concat("x", i), {types[i], shape});
    in.push_back(i == repeated ? add(g, "expand", {x, ints(g, {2, 3})}) : x);
  }
  try {
    const ir::Attrs attrs =
        op.schema.name == "bit_shift" ? ir::Attrs{{"direction", std::string("LEFT")}} : ir::Attrs{};
    g.add_output(g.add1(op, in, attrs), "y");
  } catch (const base::Error&) {
    return {};
  }
  return g;
}

/// The types after these in the order of all combinations; false after the last.
bool advance(std::vector<DType>& types) {
  for (DType& type : types) {
    const auto at = std::find(kTypes.begin(), kTypes.end(), type);
    type = at + 1 == kTypes.end() ? kTypes.front() : *(at + 1);
    if (type != kTypes.front()) return true;
  }
  return false;
}

TEST(Noops, EveryElementwiseOpTakesTheOperandOrKeepsTheExpand) {
  size_t tried = 0, shorter = 0;
  for (const ir::OpDef& op : ops::table().all()) {
    const size_t operands = ir::is_elementwise(op.schema) ? spreading(op.schema) : 0;
    if (operands < 2) continue;
    std::vector<DType> types(operands, kTypes.front());
    do {
      for (size_t repeated = 0; repeated < operands; ++repeated) {
        ir::Graph g = with_expand(op, types, repeated);
        if (g.outputs().empty()) continue;
        const tensor::TensorType type = g.type(g.outputs()[0]);
        const size_t changes = remove_noops(g);
        g.sort();
        ir::verify(g);
        EXPECT_EQ(g.nodes().size(), changes > 0 ? 1u : 2u) << op.schema.name;
        EXPECT_EQ(g.type(g.outputs()[0]), type) << op.schema.name;
        shorter += changes > 0 ? 1 : 0;
        ++tried;
      }
    } while (advance(types));
  }
  EXPECT_GT(tried, 60u);
  EXPECT_GT(shorter, 50u);
}

/// The gradient of a mean over space is an expand, which the gradient of the ReLU6 before the mean reads.
TEST(Noops, AClipBeforeAMeanIsDifferentiated) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {2, 3, 2, 2}});
  const ValueId seed = g.add_input("seed", {DType::f32, {2, 3, 1, 1}});
  const auto number = [&](float value) { return g.add_constant(Tensor::scalar(value)); };
  const ValueId clipped = add(g, "clip", {x, number(0), number(6)});
  const ValueId mean = add(g, "reduce_mean", {clipped, ints(g, {2, 3})});
  std::vector<char> wanted(g.values().size(), 0);
  wanted[ir::index(x)] = 1;
  std::vector<ValueId> gradients(g.values().size(), ir::kNoValue);
  gradients[ir::index(mean)] = seed;
  ops::backpropagate(g, 0, wanted, gradients);
  g.add_output(gradients[ir::index(x)], "dx");
  g.sort();
  const std::vector<Tensor> in{ops::testing::random_tensor(DType::f32, {2, 3, 2, 2}, -9, 15),
                               ops::testing::random_tensor(DType::f32, {2, 3, 1, 1}, -1, 1)};
  const Tensor want = ops::testing::run_graph(g, in)[0];
  remove_noops(g);
  g.sort();
  ir::verify(g);
  EXPECT_TRUE(ops::testing::run_graph(g, in)[0].same_as(want));
}

}  // namespace
}  // namespace trireme::passes
