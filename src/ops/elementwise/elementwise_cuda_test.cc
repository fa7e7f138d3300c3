// Elementwise ops and fused chains on the device against the CPU's results: every row, every element type,
// broadcasts.
#include "ops/elementwise/elementwise.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using tests::DeviceTrial;

/// `t` converted to another type on the CPU.
Tensor as_type(const Tensor& t, DType dtype) {
  if (t.dtype() == dtype) return t;
  base::ThreadPool pool(1);
  return evaluate(table().need("cast_like"), {}, {t, Tensor::empty(dtype, {1})}, 1, pool)[0];
}

DeviceTrial trial_of(std::string op, std::vector<Tensor> in, DType dtype, ir::Attrs attrs = {}) {
  const double rounding = dtype == DType::f16 ? 2e-3 : dtype == DType::bf16 ? 1.6e-2 : 2e-5;
  return {.op = std::move(op),
          .in = std::move(in),
          .attrs = std::move(attrs),
          .relative = rounding,
          .absolute = rounding};
}

/// On a GPU every function is compiled for every type, which takes time: only some types are tested there.
std::vector<DType> all_types() {
  if (cuda::has_toolkit()) return {DType::f32, DType::bf16, DType::i64, DType::u8, DType::boolean};
  return {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i8,  DType::u8,     DType::i16,
          DType::u16, DType::i32, DType::u32,  DType::i64, DType::u64, DType::boolean};
}
std::vector<DType> real_types() {
  if (cuda::has_toolkit()) return {DType::f32, DType::bf16};
  return {DType::f32, DType::f16, DType::bf16, DType::f64};
}

bool takes(const ElementwiseRow& row, DType dtype) { return row.row(dtype) != nullptr; }

TEST(ElementwiseCuda, EveryRowOfOneOperandInEveryType) {
  const Tensor x = tests::random_tensor({5, 7, 3}, 1, 2.0f);
  for (const ElementwiseRow& row : unary_rows()) {
    for (const DType dtype : all_types()) {
      if (!takes(row, dtype)) continue;
      SCOPED_TRACE(base::concat(row.name, " ", name_of(dtype)));
      tests::expect_as_cpu(trial_of(std::string(row.name), {as_type(x, dtype)}, dtype));
    }
  }
}

TEST(ElementwiseCuda, EveryDerivative) {
  const Tensor dy = tests::random_tensor({4, 33}, 2), v = tests::random_tensor({4, 33}, 3, 0.9f);
  for (const ElementwiseRow& row : unary_grad_rows()) {
    for (const DType dtype : real_types()) {
      SCOPED_TRACE(base::concat(row.name, " ", name_of(dtype)));
      tests::expect_as_cpu(trial_of(std::string(row.name), {as_type(dy, dtype), as_type(v, dtype)}, dtype));
    }
  }
}

TEST(ElementwiseCuda, EveryRowOfTwoOperandsInEveryTypeBroadcast) {
  const Tensor a = tests::random_tensor({2, 3, 9}, 4, 3.0f), b = tests::random_tensor({3, 1}, 5, 3.0f);
  for (const auto* rows : {&binary_rows(), &variadic_rows()}) {
    for (const ElementwiseRow& row : *rows) {
      for (const DType dtype : all_types()) {
        const bool is_mean_of_integers = row.name == "mean" && dtype != DType::f64 && dtype > DType::bf16;
        if (!takes(row, dtype) || is_mean_of_integers) continue;
        SCOPED_TRACE(base::concat(row.name, " ", name_of(dtype)));
        tests::expect_as_cpu(trial_of(std::string(row.name), {as_type(a, dtype), as_type(b, dtype)}, dtype));
      }
    }
  }
}

TEST(ElementwiseCuda, BroadcastsOfAllKinds) {
  struct Shapes {
    tensor::Dims a, b;
  };
  for (const Shapes& s : std::vector<Shapes>{{{}, {}},
                                             {{1}, {1, 1}},
                                             {{0, 4}, {4}},
                                             {{1000}, {1}},
                                             {{3, 1025}, {1025}},
                                             {{64, 8}, {64, 1}},
                                             {{2, 16, 5, 5}, {16, 1, 1}},
                                             {{2, 5, 5, 16}, {16}},
                                             {{4, 1, 6}, {1, 5, 1}},
                                             {{2, 1, 3, 1, 5}, {1, 4, 1, 2, 1}},
                                             {{7, 1}, {1, 9}}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(tensor::Shape::of(s.a).to_string() + tensor::Shape::of(s.b).to_string());
      const Tensor a = as_type(tests::random_tensor(s.a, 6), dtype);
      const Tensor b = as_type(tests::random_tensor(s.b, 7), dtype);
      tests::expect_as_cpu(trial_of("sub", {a, b}, dtype));
      tests::expect_as_cpu(trial_of("sub", {b, a}, dtype));
    }
  }
}

TEST(ElementwiseCuda, ManyOperands) {
  std::vector<Tensor> in;
  for (uint32_t k = 0; k < 5; ++k) in.push_back(tests::random_tensor({3, 17}, 10 + k));
  for (const char* op : {"sum", "mean", "min", "max"}) tests::expect_as_cpu(trial_of(op, in, DType::f32));
  tests::expect_as_cpu(trial_of("sum", {in[0]}, DType::f32));
  tests::expect_as_cpu(trial_of("mean", {in[0]}, DType::f32));
}

TEST(ElementwiseCuda, SpecialOps) {
  const Tensor x = tests::random_tensor({6, 11}, 20, 2.0f), y = tests::random_tensor({6, 11}, 21);
  const Tensor low = Tensor::scalar(-0.5f), high = Tensor::scalar(1.25f);
  for (const char* approximate : {"none", "tanh"}) {
    ir::Attrs attrs;
    attrs.set("approximate", std::string(approximate));
    for (const DType dtype : {DType::f32, DType::bf16}) {
      tests::expect_as_cpu(trial_of("gelu", {as_type(x, dtype)}, dtype, attrs));
      tests::expect_as_cpu(trial_of("gelu_grad", {as_type(y, dtype), as_type(x, dtype)}, dtype, attrs));
    }
  }
  DeviceTrial clip = trial_of("clip", {x, low, high}, DType::f32);
  tests::expect_as_cpu(clip);
  clip.fed = {1, 2};
  tests::expect_as_cpu(clip);
  tests::expect_as_cpu(trial_of("clip", {x, Tensor(), high}, DType::f32));
  tests::expect_as_cpu(trial_of("clip", {as_type(x, DType::i32), as_type(low, DType::i32)}, DType::i32));
  tests::expect_as_cpu(trial_of("clip_grad", {y, x, low, high}, DType::f32));
  tests::expect_as_cpu(trial_of("clip_grad", {y, x}, DType::f32));
  const Tensor positive =
      evaluate(table().need("abs"), {}, {x}, 1, *std::make_unique<base::ThreadPool>(1))[0];
  tests::expect_as_cpu(trial_of("pow", {positive, Tensor::scalar(2.5f)}, DType::f32));
  tests::expect_as_cpu(trial_of("pow", {x, as_type(Tensor::scalar(3.0f), DType::i64)}, DType::f32));
  tests::expect_as_cpu(
      trial_of("pow", {as_type(x, DType::i32), as_type(Tensor::scalar(3.0f), DType::i64)}, DType::i32));
}

TEST(ElementwiseCuda, WhereChooses) {
  const Tensor c = as_type(tests::random_bytes<int8_t>({4, 1, 5}, 30, 0, 1), DType::boolean);
  for (const DType dtype : {DType::f32, DType::f16, DType::i64, DType::u8, DType::boolean}) {
    const Tensor a = as_type(tests::random_tensor({4, 3, 5}, 31, 9.0f), dtype);
    const Tensor b = as_type(tests::random_tensor({5}, 32, 9.0f), dtype);
    tests::expect_as_cpu(trial_of("where", {c, a, b}, dtype));
  }
}

TEST(ElementwiseCuda, CastsBetweenAllTypes) {
  Tensor wild = tests::random_tensor({77}, 50, 1e5f);
  wild.mutable_data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  wild.mutable_data<float>()[4] = std::numeric_limits<float>::infinity();
  for (const DType from : all_types()) {
    for (const DType to : all_types()) {
      if (from == to) continue;
      SCOPED_TRACE(base::concat(name_of(from), " ", name_of(to)));
      tests::expect_as_cpu({.op = "cast_like",
                            .in = {as_type(wild, from), Tensor::empty(to, {1})},
                            .relative = 0,
                            .absolute = 0});
    }
  }
}

TEST(ElementwiseCuda, FusedChainsInOneLaunch) {
  ir::Attrs attrs;
  attrs.set("steps",
            std::vector<std::string>{"r0 add i0 i1", "r1 mul r0 c0", "o1 gelu_tanh r1", "r2 pow_scalar r1",
                                     "r0 muladd r2 i2 r0", "r1 clip r0", "o0 swish_grad r1 i0"});
  attrs.set("params", std::vector<double>{0, 0, 0, 0, 0, 0, 2, 0, 0, 0, -1, 1.5, 0.7, 0});
  attrs.set("constants", std::vector<double>{0.75});
  DeviceTrial trial = trial_of("fused_elementwise",
                               {tests::random_tensor({3, 5, 8}, 40), tests::random_tensor({8}, 41),
                                tests::random_tensor({3, 1, 1}, 42)},
                               DType::f32, attrs);
  trial.out_count = 2;
  tests::expect_as_cpu(trial);
}

}  // namespace
}  // namespace trireme::ops
