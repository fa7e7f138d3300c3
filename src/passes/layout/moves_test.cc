// Random chains of transposes, views and ops with axes, before and after the layout passes: equal values, and
// no more transposes than one chain needs.
#include "passes/layout/moves.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "ops/test_eval.h"
#include "passes/layout/layout.h"
#include "tests/run_kernels.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

int64_t draw(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

ValueId ints(ir::Graph& g, const Ints& values) {
  return g.add_constant(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, std::span(values)));
}

ValueId add(ir::Graph& g, const std::string& op, std::vector<ValueId> in, ir::Attrs attrs = {}) {
  return g.add1(ops::table().need(op), std::move(in), std::move(attrs));
}

Dims dims_of(const ir::Graph& g, ValueId id) { return g.type(id).shape.to_dims(); }

/// Computes the sorted graph.
std::vector<Tensor> run(const ir::Graph& g, const Tensor& x) {
  base::ThreadPool pool(2);
  std::vector<Tensor> value(g.values().size());
  for (size_t i = 0; i < value.size(); ++i) value[i] = g.values()[i].data;
  value[ir::index(g.inputs()[0])] = x;
  for (const ir::Node& node : g.nodes()) {
    if (node.op == nullptr) continue;
    std::vector<Tensor> in;
    for (ValueId id : node.in) in.push_back(id == ir::kNoValue ? Tensor() : value[ir::index(id)]);
    const auto out = ops::evaluate(*node.op, node.attrs, in, node.out.size(), pool);
    for (size_t i = 0; i < out.size(); ++i)
      if (node.out[i] != ir::kNoValue) value[ir::index(node.out[i])] = out[i];
  }
  std::vector<Tensor> results;
  for (ValueId id : g.outputs()) results.push_back(value[ir::index(id)]);
  return results;
}

size_t count(const ir::Graph& g, std::string_view op) {
  return static_cast<size_t>(std::count_if(g.nodes().begin(), g.nodes().end(), [&](const ir::Node& node) {
    return node.op != nullptr && node.op_name() == op;
  }));
}

ValueId transposed(ir::Graph& g, ValueId x, std::mt19937& random) {
  Ints perm(dims_of(g, x).size());
  std::iota(perm.begin(), perm.end(), 0);
  std::shuffle(perm.begin(), perm.end(), random);
  return add(g, "transpose", {x}, {{"perm", perm}});
}

/// Joins two adjacent axes, splits an axis by a factor of its extent, or adds an axis of extent 1.
ValueId reshaped(ir::Graph& g, ValueId x, std::mt19937& random) {
  Dims dims = dims_of(g, x);
  const size_t at = static_cast<size_t>(draw(random, 0, static_cast<int64_t>(dims.size()) - 1));
  const int64_t kind = draw(random, 0, 2);
  if (kind == 0 && at + 1 < dims.size()) {
    dims[at] *= dims[at + 1];
    dims.erase(dims.begin() + static_cast<int64_t>(at) + 1);
  } else if (kind == 1 && dims.size() < 6) {
    for (const int64_t factor : {2, 3, 5}) {
      if (dims[at] % factor != 0 || dims[at] == factor) continue;
      dims[at] /= factor;
      dims.insert(dims.begin() + static_cast<int64_t>(at) + draw(random, 0, 1), factor);
      break;
    }
  } else if (dims.size() < 6) {
    dims.insert(dims.begin() + static_cast<int64_t>(at), 1);
  }
  return add(g, "reshape", {x, ints(g, Ints(dims.begin(), dims.end()))});
}

/// `rounds`: results may differ by rounding, since another layout may sum in another order.
void expect_same(const ir::Graph& before, const ir::Graph& after, const Tensor& x, bool rounds = false) {
  const std::vector<Tensor> want = run(before, x), got = run(after, x);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].dims(), want[i].dims());
    if (rounds) {
      tests::expect_close(got[i], want[i].to_doubles(), 1e-6, 1e-6, "values");
      continue;
    }
    EXPECT_EQ(std::memcmp(got[i].raw(), want[i].raw(), static_cast<size_t>(want[i].elements()) * 4), 0);
  }
}

TEST(Moves, RandomChainsTransposeOnce) {
  std::mt19937 random(3);
  size_t merged = 0;
  for (int trial = 0; trial < 400; ++trial) {
    ir::Graph g;
    const Dims first{draw(random, 1, 3), 6, draw(random, 1, 5), 10};
    ValueId x = g.add_input("x", {DType::f32, tensor::Shape::of(first)});
    const int64_t steps = draw(random, 2, 7);
    for (int64_t i = 0; i < steps; ++i)
      x = draw(random, 0, 1) ? transposed(g, x, random) : reshaped(g, x, random);
    g.add_output(x, "y");
    ir::Graph after = g;
    const size_t transposes = count(after, "transpose");
    const size_t changes = merge_moves(after);
    after.sort();
    ir::verify(after);
    // 6 and 10 are split by factors that may conflict with an earlier split.
    if (changes > 0) {
      EXPECT_LE(count(after, "transpose"), 1u);
      merged += transposes > 1;
    }
    expect_same(g, after, tests::random_tensor(first, 7));
  }
  EXPECT_GE(merged, 150u);
}

TEST(Moves, SequencesAndImagesAreOneMemory) {
  ir::Graph g;
  const Dims first{2, 30, 7};
  const ValueId x = g.add_input("x", {DType::f32, tensor::Shape::of(first)});
  const ValueId image =
      add(g, "reshape", {add(g, "transpose", {x}, {{"perm", Ints{0, 2, 1}}}), ints(g, {2, 7, 5, 6})});
  g.add_output(add(g, "transpose", {image}, {{"perm", Ints{0, 2, 3, 1}}}), "y");
  ir::Graph after = g;
  EXPECT_GT(merge_moves(after), 0u);
  after.sort();
  EXPECT_EQ(count(after, "transpose"), 0u);
  expect_same(g, after, tests::random_tensor(first, 7));
}

/// A random op with axes as attributes or operands, over x of rank 4.
ValueId with_axes(ir::Graph& g, ValueId x, std::mt19937& random) {
  const Dims d = dims_of(g, x);
  const int64_t axis = draw(random, 0, 3);
  switch (draw(random, 0, 5)) {
    case 0: return add(g, "softmax", {x}, {{"axis", axis - (draw(random, 0, 1) ? 4 : 0)}});
    case 1: return add(g, "reduce_mean", {x, ints(g, {axis, (axis + 1) % 4})}, {{"keepdims", int64_t{1}}});
    case 2: {
      const bool names = draw(random, 0, 1) == 1;
      const int64_t last = std::max<int64_t>(1, d[names ? static_cast<size_t>(axis) : 0] - 1);
      std::vector<ValueId> in{x, ints(g, {0}), ints(g, {last})};
      if (names) in.push_back(ints(g, {axis}));
      return add(g, "slice", in);
    }
    case 3: {
      const std::vector<float> scales{1, 1, 2, static_cast<float>(draw(random, 1, 3))};
      const ValueId s = g.add_constant(Tensor::from<float>({4}, std::span<const float>(scales)));
      return add(g, "resize", {x, ir::kNoValue, s}, {{"mode", std::string("linear")}});
    }
    case 4: {
      const Ints sizes{d[0], d[1], d[2] + 1, d[3] + draw(random, 0, 2)};
      return add(g, "resize", {x, ir::kNoValue, ir::kNoValue, ints(g, sizes)},
                 {{"mode", std::string("nearest")}});
    }
    default: return add(g, "relu", {x});
  }
}

TEST(Moves, TransposesSinkPastOpsThatNameAxes) {
  std::mt19937 random(11);
  size_t sunk = 0;
  for (int trial = 0; trial < 200; ++trial) {
    ir::Graph g;
    const Dims first{2, 3, 4, 5};
    const ValueId x = g.add_input("x", {DType::f32, tensor::Shape::of(first)});
    ValueId y = add(g, "transpose", {x}, {{"perm", Ints{0, 3, 1, 2}}});
    for (int i = 0; i < 3; ++i) y = with_axes(g, y, random);
    g.add_output(add(g, "transpose", {y}, {{"perm", Ints{0, 2, 3, 1}}}), "y");
    ir::Graph after = g;
    sink_transposes(after);
    after.sort();
    ir::verify(after);
    sunk += count(after, "transpose") == 0;
    expect_same(g, after, tests::random_tensor(first, 7), true);
  }
  EXPECT_GE(sunk, 190u);  // a reduction over the whole image leaves only a view
}

}  // namespace
}  // namespace trireme::passes
