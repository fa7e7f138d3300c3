// Every legal cut of the losses against the whole.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using tests::expect_cuts;

Tensor values(tensor::Dims dims, uint64_t seed) {
  return testing::random_tensor(tensor::DType::f64, std::move(dims), -2, 2, seed);
}

Tensor target_tensor(tensor::Dims dims, int64_t classes) {
  Tensor t = Tensor::zeros(DType::i64, std::move(dims));
  const auto at = t.mutable_data<int64_t>();
  for (size_t i = 0; i < at.size(); ++i) at[i] = i % 4 == 2 ? -100 : int64_t(i) * 5 % classes;
  return t;
}

TEST(LossCut, CrossEntropyRowsAndClassesOfTheGradient) {
  const Tensor x = values({2, 4, 7}, 1), t = target_tensor({2, 4}, 7), up = Tensor::scalar(0.7);
  const ir::Attrs attrs{{"label_smoothing", 0.1}, {"z_loss", 1e-2}};
  EXPECT_EQ(expect_cuts({.op = "cross_entropy", .in = {x, t}, .attrs = attrs, .results = 4}), "ab");
  const Tensor lse = testing::run("cross_entropy", {x, t}, attrs, 2)[1];
  for (int parts : {2, 3, 4}) {
    const std::string want = parts == 2 ? "abv" : parts == 3 ? "v" : "bv";  // 7 classes make uneven parts
    EXPECT_EQ(
        expect_cuts({.op = "cross_entropy_grad", .in = {x, t, lse, up}, .attrs = attrs, .parts = parts}),
        want);
  }
}

TEST(LossCut, FastGradientOfSomeClasses) {
  const Tensor x = testing::random_tensor(DType::f32, {6, 70}, -3, 3, 2), t = target_tensor({6}, 70);
  const Tensor up = Tensor::scalar(0.7f), lse = testing::run("cross_entropy", {x, t}, {}, 2)[1];
  const std::vector<double> whole = testing::run("cross_entropy_grad", {x, t, lse, up})[0].to_doubles();
  for (const auto& [first, end] : {std::pair<int64_t, int64_t>{0, 23}, {23, 46}, {46, 70}}) {
    Tensor part = Tensor::zeros(DType::f32, {6, end - first});
    for (int64_t r = 0; r < 6; ++r) {
      for (int64_t c = first; c < end; ++c)
        part.mutable_data<float>()[size_t(r * (end - first) + c - first)] =
            x.data<float>()[size_t(r * 70 + c)];
    }
    const auto got = testing::run("cross_entropy_grad", {part, t, lse, up},
                                  {{"first", first}, {"classes", int64_t{70}}})[0]
                         .to_doubles();
    for (int64_t i = 0; i < part.elements(); ++i)
      EXPECT_NEAR(got[size_t(i)], whole[size_t(i / (end - first) * 70 + first + i % (end - first))], 1e-6);
  }
}

TEST(LossCut, ClassLosses) {
  const Tensor x = values({2, 5, 4}, 1), t = target_tensor({2, 4}, 5),
               w = testing::random_tensor(DType::f64, {5}, 0, 1, 2);
  for (const std::string op : {"nll_loss", "softmax_cross_entropy_loss"}) {
    for (const auto& [reduction, want] : {std::pair{"sum", "ab"}, {"none", "ab"}, {"mean", ""}}) {
      const ir::Attrs attrs{{"reduction", std::string(reduction)}, {"ignore_index", int64_t{-100}}};
      EXPECT_EQ(expect_cuts({.op = op, .in = {x, t, w}, .attrs = attrs}), want) << op << reduction;
      ir::Attrs back = attrs;
      back.set("softmax", int64_t{op != "nll_loss"});
      const Tensor up = std::string(reduction) == "none" ? values({2, 4}, 3) : Tensor::scalar(0.7);
      EXPECT_EQ(expect_cuts({.op = "class_loss_grad", .in = {x, t, up, w}, .attrs = back}), want)
          << op << reduction;
    }
  }
}

}  // namespace
}  // namespace trireme::ops
