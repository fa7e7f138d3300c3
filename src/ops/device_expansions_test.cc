// The expansions that devices run in place of operators without a kernel give the results of the CPU kernels.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::as_type;
using Ints = std::vector<int64_t>;
using Text = std::string;

struct ExpansionCase {
  std::string op;
  std::vector<Tensor> in;
  ir::Attrs attrs = {};
  size_t results = 1;
  double within = 1e-5;
};

/// Runs the simpler nodes of a node in a graph one after another.
std::vector<Tensor> run_parts(const ExpansionCase& c) {
  const ir::OpDef& op = table().need(c.op);
  ir::Graph g;
  ir::Node node{.op = &op, .attrs = c.attrs, .in = {}, .out = {}, .from = c.op};
  for (const Tensor& t : c.in) node.in.push_back(t.defined() ? g.add_constant(t) : ir::kNoValue);
  node.out = g.add(op, node.in, c.attrs, c.results, c.op);
  const size_t first = g.nodes().size();
  const std::vector<ir::ValueId> wanted = op.schema.expand(g, node);
  std::vector<Tensor> value(g.values().size());
  for (size_t i = 0; i < value.size(); ++i) value[i] = g.values()[i].data;
  base::ThreadPool pool(1);
  for (const ir::Node& part : g.nodes().subspan(first)) {
    std::vector<Tensor> operands;
    for (ir::ValueId id : part.in) operands.push_back(id == ir::kNoValue ? Tensor() : value[ir::index(id)]);
    const std::vector<Tensor> out = evaluate(*part.op, part.attrs, operands, part.out.size(), pool);
    for (size_t i = 0; i < out.size(); ++i) {
      if (part.out[i] != ir::kNoValue) value[ir::index(part.out[i])] = out[i];
    }
  }
  std::vector<Tensor> results;
  for (ir::ValueId id : wanted) results.push_back(value[ir::index(id)]);
  return results;
}

void expect_parts(const ExpansionCase& c) {
  SCOPED_TRACE(c.op + " " + c.attrs.get_string("equation", "") + c.attrs.get_string("reduction", ""));
  base::ThreadPool pool(1);
  const std::vector<Tensor> want = evaluate(table().need(c.op), c.attrs, c.in, c.results, pool);
  const std::vector<Tensor> got = run_parts(c);
  ASSERT_GE(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].dims(), want[i].dims());
    EXPECT_EQ(got[i].dtype(), want[i].dtype());
    tests::expect_close(got[i], want[i].to_doubles(), c.within, c.within, c.op);
  }
}

TEST(DeviceExpansions, EinsumOfEveryForm) {
  const auto t = [](const tensor::Dims& dims) {
    return tests::random_tensor(dims, 3 + uint32_t(dims.size()));
  };
  const std::vector<std::pair<const char*, std::vector<Tensor>>> cases{
      {"ij,jk->ik", {t({3, 4}), t({4, 5})}},
      {"bhid,bhjd->bhij", {t({2, 3, 4, 5}), t({2, 3, 6, 5})}},
      {"...ij,...jk->...ik", {t({2, 3, 4}), t({1, 4, 5})}},
      {"ij->ji", {t({3, 4})}},
      {"ijk->", {t({3, 4, 2})}},
      {"ii->i", {t({4, 4})}},
      {"...ii->...i", {t({2, 3, 3})}},
      {"iii->i", {t({3, 3, 3})}},
      {"ijij->ij", {t({3, 2, 3, 2})}},
      {"i,j->ij", {t({3}), t({4})}},
      {"i,i->", {t({5}), t({5})}},
      {"ij,ij->ij", {t({3, 4}), t({3, 4})}},
      {"bn,anm,bm->ba", {t({2, 3}), t({4, 3, 5}), t({2, 5})}},
      {"ab,bc,cd->ad", {t({2, 3}), t({3, 4}), t({4, 2})}},
      {"abc,bd->ad", {t({2, 3, 4}), t({3, 5})}},
      {"ij,jk", {t({1, 4}), t({4, 1})}},
      {"ij,ij->", {t({1, 4}), t({3, 4})}}};
  for (const auto& [equation, in] : cases)
    expect_parts({.op = "einsum", .in = in, .attrs = {{"equation", Text(equation)}}, .within = 2e-5});
}

TEST(DeviceExpansions, ClassLosses) {
  const Tensor x = tests::random_tensor({3, 5, 2}, 1), weights = tests::random_tensor({5}, 2);
  const Tensor target = Tensor::from<int64_t>({3, 2}, {0, 4, 2, 2, -1, 3});
  for (const char* reduction : {"none", "sum", "mean"}) {
    for (const Tensor& w : {Tensor(), weights}) {
      const ir::Attrs attrs{{"reduction", Text(reduction)}, {"ignore_index", int64_t{2}}};
      const Tensor narrow = as_type(target, DType::i32);
      expect_parts({.op = "nll_loss", .in = {x, target, w}, .attrs = attrs});
      expect_parts({.op = "softmax_cross_entropy_loss", .in = {x, narrow, w}, .attrs = attrs, .results = 2});
      const Tensor dy =
          reduction[0] == 'n' ? tests::random_tensor({3, 2}, 4) : Tensor::from<float>({}, {0.7f});
      for (const int64_t softmax : {0, 1}) {
        ir::Attrs back = attrs;
        back.set("softmax", softmax);
        expect_parts({.op = "class_loss_grad", .in = {x, target, dy, w}, .attrs = back});
      }
    }
  }
}

TEST(DeviceExpansions, NormsAndSoftmaxes) {
  const Tensor x = tests::random_tensor({2, 3, 4, 5}, 1), c = tests::random_tensor({3}, 2);
  const Tensor variance = Tensor::from<float>({3}, {0.5f, 1, 2});
  for (const int64_t p : {1, 2}) {
    for (const int64_t axis : {1, -1})
      expect_parts({.op = "lp_norm", .in = {x}, .attrs = {{"p", p}, {"axis", axis}}});
    expect_parts({.op = "global_lp_pool", .in = {x}, .attrs = {{"p", p + 1}}});
  }
  expect_parts({.op = "lp_norm", .in = {Tensor::zeros(DType::f32, {2, 3})}});
  expect_parts({.op = "mean_variance_norm", .in = {x}});
  expect_parts({.op = "batch_norm", .in = {x, c, c, c, variance}});
  expect_parts({.op = "batch_norm",
                .in = {x, c, c, c, variance},
                .attrs = {{"training_mode", int64_t{1}}, {"momentum", 0.8}},
                .results = 3});
  for (const int64_t axis : {0, 1, -1}) {
    expect_parts({.op = "hardmax", .in = {x}, .attrs = {{"axis", axis}}});
    expect_parts({.op = "softmax", .in = {as_type(x, DType::f64)}, .attrs = {{"axis", axis}}});
    expect_parts({.op = "log_softmax", .in = {as_type(x, DType::f64)}, .attrs = {{"axis", axis}}});
    const Tensor axes = Tensor::from<int64_t>({1}, {axis});
    for (const int64_t keep : {0, 1})
      expect_parts({.op = "reduce_log_sum_exp", .in = {x, axes}, .attrs = {{"keepdims", keep}}});
  }
  const Tensor low = Tensor::from<float>({2, 2}, {-INFINITY, -INFINITY, -INFINITY, 1});
  base::ThreadPool pool(1);
  const Tensor axes = Tensor::from<int64_t>({1}, {1});
  const Tensor sums = run_parts({.op = "reduce_log_sum_exp", .in = {low, axes}})[0];
  EXPECT_EQ(sums.data<float>()[0], -INFINITY);
  EXPECT_FLOAT_EQ(sums.data<float>()[1], 1);
}

TEST(DeviceExpansions, FourierTransforms) {
  const auto one = [](int64_t v) { return Tensor::from<int64_t>({}, {v}); };
  for (const int64_t inverse : {0, 1}) {
    for (const int64_t one_sided : {0, 1}) {
      for (const int64_t length : {6, 7, 9, 12}) {
        const ir::Attrs attrs{{"inverse", inverse}, {"onesided", one_sided}};
        const int64_t parts = one_sided == 1 && inverse == 0 ? 1 : 2;
        expect_parts({.op = "dft",
                      .in = {tests::random_tensor({2, 9, 3, parts}, 1), one(length), one(1)},
                      .attrs = attrs,
                      .within = 2e-5});
      }
    }
  }
  const Tensor signal = tests::random_tensor({2, 40, 1}, 2);
  for (const int64_t window : {0, 8, 5}) {
    const Tensor w = window == 0 ? Tensor() : tests::random_tensor({window}, 3);
    for (const int64_t one_sided : {0, 1}) {
      expect_parts({.op = "stft",
                    .in = {signal, one(3), w, one(8)},
                    .attrs = {{"onesided", one_sided}},
                    .within = 2e-5});
    }
  }
  // If the matrix would be too large it is not made, and the node stays.
  ir::Graph g;
  const ir::OpDef& dft = table().need("dft");
  ir::Node node{.op = &dft,
                .attrs = {},
                .in = {g.add_constant(Tensor::zeros(DType::f32, {1, 5000, 2}))},
                .out = {},
                .from = "long"};
  node.out = g.add(dft, node.in, {}, 1, "long");
  dft.schema.expand(g, node);
  EXPECT_EQ(g.nodes().back().op_name(), "dft");
}

TEST(DeviceExpansions, ProductsOfBytes) {
  const auto bytes = [](const tensor::Dims& dims, uint32_t seed) {
    return tests::random_bytes<uint8_t>(dims, seed, 0, 255);
  };
  const auto floats = [](std::vector<float> v) {
    return Tensor::from<float>({int64_t(v.size())}, std::span<const float>(v));
  };
  const auto number = [](float v) { return Tensor::from<float>({}, {v}); };
  const auto zero = [](uint8_t v) { return Tensor::from<uint8_t>({}, {v}); };
  expect_parts({.op = "qlinear_matmul",
                .in = {bytes({2, 3, 4}, 1), number(0.02f), zero(120), bytes({2, 4, 5}, 2), number(0.03f),
                       zero(130), number(0.5f), zero(7)},
                .within = 0});
  expect_parts({.op = "qlinear_matmul",
                .in = {bytes({3, 4}, 1), floats({0.02f, 0.01f, 0.03f}),
                       Tensor::from<uint8_t>({3}, {1, 120, 255}), bytes({4, 2}, 2), floats({0.03f, 0.02f}),
                       Tensor::from<uint8_t>({2}, {3, 130}), number(0.5f), zero(7)},
                .within = 0});
  const ir::Attrs grouped{{"group", int64_t{2}}, {"pads", Ints{1, 0, 1, 1}}, {"strides", Ints{2, 1}}};
  const Tensor x = bytes({2, 4, 6, 5}, 3), w = bytes({6, 2, 3, 2}, 4);
  expect_parts({.op = "conv_integer", .in = {x, w, zero(100), zero(128)}, .attrs = grouped, .within = 0});
  expect_parts(
      {.op = "qlinear_conv",
       .in = {x, number(0.02f), zero(100), w, floats({0.1f, 0.2f, 0.3f, 0.1f, 0.2f, 0.3f}), zero(128),
              number(2.0f), zero(9), Tensor::from<int32_t>({6}, {1, -200, 3, 400, 5, -6})},
       .attrs = grouped,
       .within = 0});
}

TEST(DeviceExpansions, MaximaGoBackToTheirPlaces) {
  const Tensor x = tests::random_tensor({1, 1, 2, 2}, 1),
               at = Tensor::from<int64_t>({1, 1, 2, 2}, {1, 3, 8, 15});
  const ir::Attrs window{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  expect_parts({.op = "max_unpool", .in = {x, at}, .attrs = window});
  expect_parts(
      {.op = "max_unpool", .in = {x, at, Tensor::from<int64_t>({4}, {1, 1, 5, 5})}, .attrs = window});
}

}  // namespace
}  // namespace trireme::ops
