// cross_entropy from parts of the classes against cross_entropy: kernels, ties, ignored rows, cuts.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using tests::expect_cuts;

Tensor ids_of(std::vector<int64_t> values) { return testing::ints(std::move(values)); }

std::vector<Tensor> by_parts(const Tensor& x, const Tensor& t, ir::Attrs attrs, int64_t parts,
                             const char* kernel) {
  attrs.set("classes", x.dims().back());
  ir::Attrs of_part = attrs;
  of_part.erase("z_loss");
  of_part.set("parts", parts);
  ir::OpDef op = table().need("cross_entropy_part");
  std::erase_if(op.kernels, [&](const ir::Kernel& k) { return k.name != kernel; });
  base::ThreadPool pool(3);
  const auto part = evaluate(op, of_part, {x, t}, 2, pool);
  const Tensor top = testing::run("reduce_max", {part[0], ids_of({-1})}, {{"keepdims", int64_t{0}}})[0];
  const Tensor totals = testing::run("cross_entropy_total", {part[0], part[1], top})[0];
  return testing::run("cross_entropy_join", {top, totals, t}, attrs, 4);
}

void expect_same(const Tensor& x, const Tensor& t, const ir::Attrs& attrs) {
  const auto want = testing::run("cross_entropy", {x, t}, attrs, 4);
  const bool wide = x.dtype() == DType::f64;
  for (int64_t parts : {1, 2, 3, 4, 5, 50}) {
    for (const char* kernel : {"vector", "reference"}) {
      if (wide && std::string(kernel) == "vector") continue;
      const auto got = by_parts(x, t, attrs, parts, kernel);
      for (size_t i = 0; i < 4; ++i)
        tests::expect_close(got[i], want[i].to_doubles(), wide ? 1e-13 : 2e-6, wide ? 1e-13 : 2e-6, kernel);
    }
  }
}

TEST(ClassParts, AddUpToCrossEntropy) {
  for (const DType type : {DType::f32, DType::f64}) {
    for (const int64_t classes : {1, 2, 11, 64, 1000}) {
      const Tensor x = testing::random_tensor(type, {2, 3, classes}, -4, 4, uint64_t(classes));
      std::vector<int64_t> ids{0, classes - 1, -1, classes / 2, classes / 3, -1};
      const Tensor t = Tensor::from<int64_t>({2, 3}, std::span<const int64_t>(ids));
      for (const auto& [smooth, z] : {std::pair{0.0, 0.0}, {0.1, 0.0}, {0.3, 1e-2}})
        expect_same(x, t, {{"ignore_index", int64_t{-1}}, {"label_smoothing", smooth}, {"z_loss", z}});
    }
  }
}

TEST(ClassParts, TiesGoToTheFirstClassWhereverItIs) {
  // With equal scores only class 0 counts as right, whether the target is in the same part or another one.
  expect_same(Tensor::zeros(DType::f32, {4, 40}), ids_of({0, 1, 25, 39}), {});
  // A row whose largest scores are in distant classes, and one with a single largest score.
  Tensor x = Tensor::zeros(DType::f64, {3, 9});
  for (size_t at : {2u, 7u, 9u + 2, 9u + 7, 18u + 7}) x.mutable_data<double>()[at] = 3;
  const auto got = by_parts(x, ids_of({2, 7, 7}), {}, 3, "reference");
  EXPECT_EQ(got[3].to_doubles()[0], 2);
  EXPECT_NEAR(got[0].to_doubles()[0],
              testing::run("cross_entropy", {x, ids_of({2, 7, 7})})[0].to_doubles()[0], 1e-14);
}

TEST(ClassParts, ExtremeScores) {
  const float lowest = -std::numeric_limits<float>::infinity();
  Tensor x = Tensor::zeros(DType::f32, {2, 30});
  for (float& v : x.mutable_data<float>()) v = lowest;
  x.mutable_data<float>()[5] = 3e4f;
  x.mutable_data<float>()[20] = 3e4f;
  x.mutable_data<float>()[59] = -1e30f;
  expect_same(x, ids_of({20, 29}), {});
  Tensor bad = Tensor::zeros(DType::f32, {1, 30});
  bad.mutable_data<float>()[17] = std::nanf("");
  EXPECT_TRUE(std::isnan(by_parts(bad, ids_of({2}), {}, 3, "vector")[0].to_doubles()[0]));
  EXPECT_THROW(by_parts(x, ids_of({2, 30}), {}, 3, "vector"), base::Error);
}

TEST(ClassParts, HalfPrecisionScores) {
  const Tensor x = testing::random_tensor(DType::bf16, {4, 33}, -3, 3), t = ids_of({0, 32, 5, 7});
  const auto want = testing::run("cross_entropy", {x, t}, {}, 4);
  const auto got = by_parts(x, t, {}, 3, "vector_via_f32");
  for (size_t i = 0; i < 4; ++i) tests::expect_close(got[i], want[i].to_doubles(), 2e-6, 2e-6, "bf16");
}

TEST(ClassParts, Cuts) {
  const Tensor x = testing::random_tensor(DType::f64, {2, 4, 12}, -2, 2, 1);
  const Tensor t = Tensor::from<int64_t>({2, 4}, {0, 11, 3, -100, 5, 6, 7, 2});
  const ir::Attrs attrs{{"label_smoothing", 0.1}, {"parts", int64_t{4}}};
  EXPECT_EQ(expect_cuts({.op = "cross_entropy_part", .in = {x, t}, .attrs = attrs, .results = 2}), "abv");
  const auto part = testing::run("cross_entropy_part", {x, t}, attrs, 2);
  const Tensor top = testing::run("reduce_max", {part[0], ids_of({-1})}, {{"keepdims", int64_t{0}}})[0];
  Tensor sums = part[1].clone();
  for (double& v : sums.mutable_data<double>()) v = std::isnan(v) ? 0.5 : v;  // NaN: no target here
  EXPECT_EQ(expect_cuts({.op = "cross_entropy_total", .in = {part[0], sums, top}}), "abv");
  const Tensor totals = testing::run("cross_entropy_total", {part[0], part[1], top})[0];
  const ir::Attrs of_loss{{"label_smoothing", 0.1}, {"classes", int64_t{12}}, {"z_loss", 0.1}};
  EXPECT_EQ(expect_cuts({.op = "cross_entropy_join", .in = {top, totals, t}, .attrs = of_loss, .results = 4}),
            "ab");
}

}  // namespace
}  // namespace trireme::ops
