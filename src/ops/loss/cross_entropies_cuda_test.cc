// Cross entropy and its steps on the device against the CPU's results.
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;

/// Classes in [0, n); every fifth one is ignored.
template <class T>
Tensor typed_targets(const Dims& dims, int64_t n) {
  Tensor t = Tensor::empty(tensor::dtype_of<T>(), dims);
  int64_t i = 0;
  for (T& v : t.mutable_data<T>()) {
    v = static_cast<T>(i % 5 == 4 ? -100 : i * 7 % n);
    ++i;
  }
  return t;
}

ir::Attrs smoothed() { return {{"label_smoothing", 0.1}, {"z_loss", 0.01}}; }

class EntropyCuda : public ::testing::TestWithParam<DType> {
 protected:
  void expect_as_cpu(tests::DeviceTrial trial) const {
    trial.relative = trial.absolute = 3 * tests::half_tolerance(GetParam());
    tests::expect_as_cpu(trial);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, EntropyCuda, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& at) { return std::string(name_of(at.param)); });

TEST_P(EntropyCuda, LossAndItsGradient) {
  for (const int64_t n : {1, 5, 64, 1001, 9000}) {
    const Tensor x = tests::rounded_to(GetParam(), random_tensor({2, 7, n}, 1, 3));
    Tensor lse = random_tensor({2, 7}, 2);
    for (float& v : lse.mutable_data<float>()) v += 8;
    const Tensor up = Tensor::scalar(0.25f);
    for (const ir::Attrs& attrs : {ir::Attrs{}, smoothed()}) {
      expect_as_cpu({.op = "cross_entropy",
                     .in = {x, typed_targets<int64_t>({2, 7}, n)},
                     .attrs = attrs,
                     .out_count = 4});
      expect_as_cpu({.op = "cross_entropy",
                     .in = {x, typed_targets<int32_t>({2, 7}, n)},
                     .attrs = attrs,
                     .out_count = 1});
      expect_as_cpu({.op = "cross_entropy_grad",
                     .in = {x, typed_targets<int32_t>({2, 7}, n), lse, up},
                     .attrs = attrs});
    }
  }
}

TEST_P(EntropyCuda, ScoresBehindTheClassesCountNowhere) {
  for (const auto& [n, padded] : std::vector<std::array<int64_t, 2>>{{60, 4}, {61, 3}, {1001, 23}, {7, 2}}) {
    Tensor wide = random_tensor({2, 7, n + padded}, 1, 3);
    for (int64_t i = 0; i < 14 * (n + padded); ++i) {
      // The padded scores are larger than those of any class.
      if (i % (n + padded) >= n) wide.mutable_data<float>()[static_cast<size_t>(i)] = 1000;
    }
    const Tensor x = tests::rounded_to(GetParam(), wide);
    Tensor lse = random_tensor({2, 7}, 2);
    for (float& v : lse.mutable_data<float>()) v += 8;
    const Tensor up = Tensor::scalar(0.25f), t = typed_targets<int64_t>({2, 7}, n);
    for (ir::Attrs attrs : {ir::Attrs{}, smoothed()}) {
      attrs.set("padded", padded);
      expect_as_cpu({.op = "cross_entropy", .in = {x, t}, .attrs = attrs, .out_count = 4});
      expect_as_cpu({.op = "cross_entropy_grad", .in = {x, t, lse, up}, .attrs = attrs});
      // The targets belong to classes before this part.
      attrs = {{"padded", padded}, {"parts", int64_t{2}}, {"first", 2 * n}, {"classes", 4 * n}};
      expect_as_cpu({.op = "cross_entropy_part", .in = {x, t}, .attrs = attrs, .out_count = 2});
    }
  }
}

TEST(EntropyCudaRows, TiesAndInfinities) {
  Tensor x = random_tensor({5, 9}, 1);
  auto at = [&](int64_t row, int64_t c) -> float& { return x.mutable_data<float>()[size_t(row * 9 + c)]; };
  at(0, 0) = at(0, 7) = 9;  // the target is the first of two largest
  at(1, 3) = at(1, 7) = 9;  // the target is the second of two largest
  at(2, 1) = -INFINITY;
  tests::expect_as_cpu({.op = "cross_entropy", .in = {x, typed_targets<int64_t>({5}, 9)}, .out_count = 4});
}

TEST(EntropyCudaRows, NoneAtAll) {
  tests::expect_as_cpu({.op = "cross_entropy",
                        .in = {Tensor::zeros(DType::f32, {0, 9}), typed_targets<int64_t>({0}, 9)},
                        .out_count = 4});
}

TEST(EntropyCudaRows, StepsOverPartsOfTheClasses) {
  const int64_t n = 103;
  const Tensor x = random_tensor({6, n}, 1, 2), target = typed_targets<int64_t>({6}, 200);
  for (const char* smoothing : {"", "with"}) {
    ir::Attrs attrs{{"parts", int64_t{4}}, {"classes", int64_t{206}}, {"first", int64_t{50}}};
    if (*smoothing != 0) attrs.set("label_smoothing", 0.1);
    tests::expect_as_cpu({.op = "cross_entropy_part", .in = {x, target}, .attrs = attrs, .out_count = 2});
    base::ThreadPool pool(1);
    const auto parts = evaluate(table().need("cross_entropy_part"), attrs, {x, target}, 2, pool);
    const Tensor top = random_tensor({6}, 3);
    tests::expect_as_cpu({.op = "cross_entropy_total", .in = {parts[0], parts[1], top}});
    Tensor totals = random_tensor({*smoothing != 0 ? 3 : 2, 6}, 4);
    for (float& v : totals.mutable_data<float>()) v = 1 + v * v;
    attrs = {{"classes", int64_t{206}}, {"z_loss", 0.01}};
    if (*smoothing != 0) attrs.set("label_smoothing", 0.1);
    tests::expect_as_cpu(
        {.op = "cross_entropy_join", .in = {top, totals, target}, .attrs = attrs, .out_count = 4});
  }
}

}  // namespace
}  // namespace trireme::ops
