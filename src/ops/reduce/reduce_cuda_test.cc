// Reductions on the device against the CPU's results: all axes, element types, one and two stages.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::as_type;

Tensor axes_of(const std::vector<int64_t>& axes) {
  Tensor t = Tensor::empty(DType::i64, {static_cast<int64_t>(axes.size())});
  std::copy(axes.begin(), axes.end(), t.mutable_data<int64_t>().begin());
  return t;
}

constexpr const char* kOps[] = {"reduce_sum",  "reduce_mean", "reduce_max", "reduce_min",
                                "reduce_prod", "reduce_l1",   "reduce_l2",  "reduce_sum_square"};

void expect(const char* op, const Tensor& x, const std::vector<int64_t>& axes, double tolerance) {
  SCOPED_TRACE(base::concat(op, " ", tensor::to_string(x.dims()), " ", name_of(x.dtype())));
  std::vector<Tensor> in{x};
  if (!axes.empty()) in.push_back(axes_of(axes));
  tests::expect_as_cpu({.op = op, .in = in, .relative = tolerance, .absolute = tolerance});
}

TEST(ReduceCuda, AnyAxes) {
  struct Case {
    tensor::Dims dims;
    std::vector<int64_t> axes;
  };
  for (const Case& c : std::vector<Case>{{{}, {}},
                                         {{1}, {}},
                                         {{9}, {0}},
                                         {{5, 64}, {1}},
                                         {{5, 33}, {-1}},
                                         {{64, 5}, {0}},
                                         {{40, 128}, {0}},
                                         {{300, 264}, {0}},
                                         {{1024, 8}, {0}},
                                         {{3, 4, 5, 6}, {0, 2, 3}},
                                         {{3, 4, 5, 8}, {0, 2}},
                                         {{3, 4, 5, 6}, {1, 3}},
                                         {{2, 3, 2, 3, 2}, {1, 3}},
                                         {{4, 0}, {0}}}) {
    for (const char* op : {"reduce_sum", "reduce_max"})
      expect(op, tests::random_tensor(c.dims, 1), c.axes, 1e-5);
  }
  expect("reduce_sum", tests::random_tensor({0, 4}, 1), {0}, 0);
  for (const char* op : {"reduce_max", "reduce_min"}) {
    for (const DType dtype : {DType::f32, DType::i32, DType::i64}) {
      expect(op, Tensor::empty(dtype, {0, 4}), {0}, 0);
      expect(op, Tensor::empty(dtype, {3, 0}), {1}, 0);
    }
  }
}

TEST(ReduceCuda, EveryKindInEveryType) {
  const Tensor x = tests::random_tensor({6, 5, 8}, 2, 2.0f);
  for (const char* op : kOps) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i32, DType::i64}) {
      const double tolerance = dtype == DType::bf16 ? 1.6e-2 : dtype == DType::f16 ? 2e-3 : 1e-5;
      for (const std::vector<int64_t>& axes : {std::vector<int64_t>{2}, {0}, {0, 2}})
        expect(op, as_type(x, dtype), axes, tolerance);
    }
  }
  expect("reduce_log_sum", as_type(tests::random_bytes<int8_t>({4, 9}, 3, 1, 9), DType::f32), {1}, 1e-5);
}

TEST(ReduceCuda, LongSumsHaveTwoStages) {
  expect("reduce_sum", tests::random_tensor({40000}, 4), {0}, 1e-3);
  expect("reduce_max", tests::random_tensor({2, 20011}, 5), {1}, 0);
  expect("reduce_mean", tests::random_tensor({1000, 36}, 6), {0}, 1e-5);
  expect("reduce_sum", tests::random_tensor({700, 3, 5}, 7), {0, 2}, 1e-3);
}

TEST(ReduceCuda, ANanIsTheExtreme) {
  Tensor x = tests::random_tensor({3, 100}, 8);
  x.mutable_data<float>()[150] = std::numeric_limits<float>::quiet_NaN();
  for (const char* op : {"reduce_max", "reduce_min"}) expect(op, x, {1}, 0);
  for (const char* op : {"arg_max", "arg_min"})
    tests::expect_as_cpu({.op = op, .in = {x}, .attrs = {{"axis", int64_t{1}}}});
}

TEST(ReduceCuda, PlaceOfTheLargest) {
  for (const int64_t axis : {0, 1, 2}) {
    for (const int64_t last : {0, 1}) {
      const Tensor x = as_type(tests::random_bytes<int8_t>({5, 70, 3}, 9, -4, 4), DType::f32);
      for (const char* op : {"arg_max", "arg_min"}) {
        tests::expect_as_cpu({.op = op, .in = {x}, .attrs = {{"axis", axis}, {"select_last_index", last}}});
      }
    }
  }
  tests::expect_as_cpu(
      {.op = "arg_max", .in = {tests::random_tensor({3, 1000}, 10)}, .attrs = {{"axis", int64_t{1}}}});
}

TEST(ReduceCuda, RunningSums) {
  for (const int64_t axis : {0, 1}) {
    for (const int64_t exclusive : {0, 1}) {
      for (const int64_t reverse : {0, 1}) {
        const ir::Attrs attrs{{"exclusive", exclusive}, {"reverse", reverse}};
        for (const char* op : {"cum_sum", "cum_prod"}) {
          const Tensor x = tests::random_tensor({4, 600}, 11, 0.5f);
          tests::expect_as_cpu({.op = op, .in = {x, axes_of({axis})}, .attrs = attrs});
        }
      }
    }
  }
  tests::expect_as_cpu(
      {.op = "cum_sum", .in = {as_type(tests::random_tensor({9}, 12, 5), DType::i64), axes_of({0})}});
}

}  // namespace
}  // namespace trireme::ops
