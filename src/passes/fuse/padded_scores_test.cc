// Scores of a vocabulary with padded columns: the resulting step, and that no value changes.
#include "passes/fuse/padded_scores.h"

#include <gtest/gtest.h>

#include "ops/grad.h"
#include "ops/table.h"
#include "ops/test_grad.h"
#include "passes/test_counts.h"
#include "tests/run_kernels.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::DType;
using tensor::Shape;
using tensor::Tensor;

struct HeadForm {
  int64_t classes = 300;
  bool transposed = true, has_bias = false, is_low = false, reads_scores = false;
  const char* loss = "cross_entropy";
};

/// A head over rows [6, 8]; the outputs are its loss and the gradients of all its operands.
ir::Graph head_step(const HeadForm& form) {
  ir::Graph g;
  const auto op = [&](const char* name, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return g.add1(ops::table().need(name), std::move(in), std::move(attrs), "head");
  };
  const auto low = [&](ValueId id) { return form.is_low ? op("cast", {id}, {{"to", int64_t{16}}}) : id; };
  const ValueId x = g.add_input("x", {DType::f32, {2, 3, 8}});
  const Shape matrix = form.transposed ? Shape{form.classes, 8} : Shape{8, form.classes};
  const ValueId w = g.add_input("w", {DType::f32, matrix});
  const ValueId b = g.add_input("b", {DType::f32, {form.classes}});
  const ValueId labels = g.add_input("labels", {DType::i64, {6}});
  std::vector<ValueId> in{low(x), low(w)};
  if (form.has_bias) in.push_back(low(b));
  ValueId scores = op("linear", in, {{"transposed", int64_t{form.transposed}}});
  if (form.is_low) scores = op("cast", {scores}, {{"to", int64_t{1}}});
  const ValueId shape = g.add_constant(Tensor::from<int64_t>({2}, {6, form.classes}));
  scores = op("reshape", {scores, shape});
  const ValueId loss =
      g.add(ops::table().need("cross_entropy"), {scores, labels}, {{"label_smoothing", 0.1}}, 4, "loss")[0];
  std::vector<ValueId> outputs{loss};
  std::vector<std::string> names{"loss"};
  g.add_output(loss, "loss");
  if (form.reads_scores) outputs.push_back(scores), names.emplace_back("scores");
  std::vector<ValueId> params{x, w};
  if (form.has_bias) params.push_back(b);
  std::vector<char> wanted(g.values().size(), 0);
  for (ValueId id : params) wanted[ir::index(id)] = 1;
  std::vector<ValueId> gradients(g.values().size(), ir::kNoValue);
  gradients[ir::index(loss)] = g.add_constant(Tensor::scalar(0.2f));
  ops::backpropagate(g, 0, wanted, gradients);
  for (ValueId id : params) {
    outputs.push_back(gradients[ir::index(id)]);
    names.push_back("d" + g.value(id).name);
  }
  g.set_outputs(outputs, names);
  g.sort();
  return g;
}

std::vector<Tensor> inputs_of(const ir::Graph& g) {
  std::vector<Tensor> in;
  for (ValueId id : g.inputs()) {
    const ir::Value& v = g.value(id);
    if (v.name == "labels") {
      in.push_back(
          Tensor::from<int64_t>({6}, {0, 7, -100, 299 % g.type(g.inputs()[2]).shape.to_dims()[0], 1, 2}));
    } else {
      in.push_back(tests::random_tensor(v.type.shape.to_dims(), static_cast<uint32_t>(in.size() + 1)));
    }
  }
  return in;
}

void expect_same_values(const ir::Graph& before, const ir::Graph& after, double tolerance) {
  const std::vector<Tensor> in = inputs_of(before);
  const auto want = ops::testing::run_graph(before, in), got = ops::testing::run_graph(after, in);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].dims(), want[i].dims()) << before.output_names()[i];
    const std::vector<double> a = got[i].to_doubles(), b = want[i].to_doubles();
    for (size_t j = 0; j < b.size() && j < a.size(); ++j)
      ASSERT_NEAR(a[j], b[j], tolerance * (1 + std::abs(b[j]))) << before.output_names()[i] << " " << j;
  }
}

TEST(PadScores, GivesTheSameLossAndGradients) {
  for (const bool transposed : {true, false}) {
    for (const bool has_bias : {true, false}) {
      for (const bool is_low : {true, false}) {
        const HeadForm form{.transposed = transposed, .has_bias = has_bias, .is_low = is_low};
        const ir::Graph before = head_step(form);
        ir::Graph after = before;
        EXPECT_EQ(pad_scores(after), 1u);
        after.sort();
        ir::verify(after);
        EXPECT_EQ(count(after, "pad"), has_bias ? 2u : 1u) << ir::print(after);
        EXPECT_EQ(count(after, "cross_entropy", "padded"), 1u);
        EXPECT_EQ(count(after, "cross_entropy_grad", "padded"), 1u);
        EXPECT_EQ(count(after, "slice"), has_bias ? 2u : 1u);
        for (const ir::Node& node : after.nodes()) {
          if (node.op == nullptr || node.op_name() != "linear") continue;
          EXPECT_EQ(after.type(node.out[0]).shape.to_dims().back(), 320);
        }
        expect_same_values(before, after, is_low ? 1e-2 : 1e-6);
        EXPECT_EQ(pad_scores(after), 0u) << "once is enough";
      }
    }
  }
}

TEST(PadScores, LeavesWhatItMayNotTouch) {
  for (const HeadForm& form :
       {HeadForm{.classes = 320}, HeadForm{.classes = 100}, HeadForm{.reads_scores = true}}) {
    ir::Graph g = head_step(form);
    EXPECT_EQ(pad_scores(g), 0u) << form.classes;
    EXPECT_EQ(count(g, "pad"), 0u);
  }
}

}  // namespace
}  // namespace trireme::passes
