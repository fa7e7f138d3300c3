// Elementwise ops against formulas in double: every kernel, every element type, broadcasts, odd sizes.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/elementwise/fused.h"
#include "ops/elementwise/small_float.h"
#include "ops/test_eval.h"
#include "tests/unary_cases.h"

namespace trireme::ops {
namespace {

using namespace testing;  // NOLINT: the tests' own vocabulary
double tolerance(DType t) {
  return t == DType::f16 ? 2e-3 : t == DType::bf16 ? 2e-2 : t == DType::f32 ? 2e-6 : 1e-12;
}

/// `op` in every float type against the formula of its row, with parameters `values`.
void expect_formula(const std::string& op, const tests::UnaryCase& c, const Params& values,
                    const ir::Attrs& attrs = {}) {
  for (DType t : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (int64_t n : {0, 1, 7, 1031}) {
      const Tensor x = random_tensor(t, {n}, c.range.low, c.range.high);
      const std::vector<double> in = x.to_doubles(), got = run(op, {x}, attrs)[0].to_doubles();
      for (size_t i = 0; i < in.size(); ++i) {
        const double want = c.formula(in[i], values[0], values[1]);
        ASSERT_NEAR(got[i], want, tolerance(t) * std::max(1.0, std::fabs(want))) << c.name << " of " << in[i];
      }
    }
  }
}

TEST(Elementwise, UnaryOpsMatchTheirFormulas) {
  for (const ElementwiseRow& row : unary_rows()) {
    if (row.is_predicate || row.row(DType::f32) == nullptr) continue;
    const tests::UnaryCase* c = tests::unary_case(row.name);
    if (c == nullptr) {
      ADD_FAILURE() << row.name << " has no row in tests/unary_cases.h";
    } else {
      expect_formula(std::string(row.name), *c, params_of(row, {}));
    }
  }
  expect_formula("gelu", *tests::unary_case("gelu"), {});
  expect_formula("gelu", *tests::unary_case("gelu_tanh"), {}, {{"approximate", std::string("tanh")}});
}

TEST(Elementwise, EveryKernelOfAnOpAgreesWithTheReference) {
  for (const ir::OpDef& op : table().all()) {
    const bool is_unary = op.schema.max_in == 1 && op.schema.dims == "...->..." && op.schema.name != "cast";
    const bool is_binary = op.schema.max_in == 2 && op.schema.dims == "...,...->...";
    if ((!is_unary && !is_binary) || cpu_kernel_count(op) < 2) continue;
    const auto takes = [&](DType type) {
      const ir::Attrs none;
      ir::NodeView n{none, {is_unary ? 1u : 2u, {type, {1}}}, {}, {}, {true, true}};
      try {
        ir::infer_types(op.schema, n);
        return true;
      } catch (const base::Error&) {
        return false;
      }
    };
    const DType t = takes(DType::f32) ? DType::f32 : takes(DType::i32) ? DType::i32 : DType::boolean;
    const Tensor a = random_tensor(t, {5, 333}, 0.1, 3), row = random_tensor(t, {333}, 0.5, 2, 2);
    std::vector<std::vector<Tensor>> cases{{a}};
    if (is_binary) {
      const Tensor column = row.rows(0, 5).reshaped({5, 1});
      cases = {{a, a},       {a, row},    {row, a},
               {a, column},  {column, a}, {a, random_tensor(t, {}, 1.5, 1.5)},
               {column, row}};
    }
    for (const auto& in : cases) {
      const Tensor want = run_kernel(op.schema.name, "reference", in), got = run(op.schema.name, in)[0];
      const std::vector<double> w = want.to_doubles(), g = got.to_doubles();
      for (size_t i = 0; i < w.size(); ++i) {
        ASSERT_NEAR(g[i], w[i], 4e-6 * std::max(1.0, std::fabs(w[i]))) << op.schema.name;
      }
    }
  }
}

struct BinaryCase {
  const char* name;
  double (*formula)(double, double);
};
const BinaryCase kBinary[] = {
    {"add", [](double a, double b) { return a + b; }},
    {"sub", [](double a, double b) { return a - b; }},
    {"mul", [](double a, double b) { return a * b; }},
    {"div", [](double a, double b) { return a / b; }},
    {"min", [](double a, double b) { return std::min(a, b); }},
    {"max", [](double a, double b) { return std::max(a, b); }},
    {"sum", [](double a, double b) { return a + b; }},
    {"mean", [](double a, double b) { return (a + b) / 2; }},
    {"pow", [](double a, double b) { return std::pow(a, b); }},
    {"less", [](double a, double b) { return a < b ? 1.0 : 0.0; }},
    {"greater_or_equal", [](double a, double b) { return a >= b ? 1.0 : 0.0; }},
    {"equal", [](double a, double b) { return a == b ? 1.0 : 0.0; }},
};

TEST(Elementwise, BinaryOpsBroadcastLikeNumPy) {
  // Result [2, 3, 4, 5]; each operand is broadcast in other dimensions.
  const tensor::Dims shapes[] = {{2, 3, 4, 5}, {5}, {4, 1}, {3, 1, 5}, {2, 1, 4, 1}, {}};
  for (const BinaryCase& c : kBinary) {
    for (DType t : {DType::f32, DType::f64, DType::f16, DType::i32}) {
      for (const tensor::Dims& b_dims : shapes) {
        const Tensor a = random_tensor(t, {2, 3, 4, 5}, 1, 4), b = random_tensor(t, b_dims, 1, 4, 9);
        const Tensor y = run(c.name, {a, b})[0];
        ASSERT_EQ(y.dims(), a.dims());
        const std::vector<double> av = a.to_doubles(), bv = b.to_doubles(), got = y.to_doubles();
        for (int64_t i = 0; i < a.elements(); ++i) {
          int64_t rest = i, at = 0, step = 1;
          for (size_t d = 0; d < b_dims.size(); ++d) {  // innermost first
            const int64_t extent = b_dims[b_dims.size() - 1 - d], full = a.dims()[3 - d];
            at += (rest % full % extent) * step;
            rest /= full;
            step *= extent;
          }
          double want = c.formula(av[static_cast<size_t>(i)], bv[static_cast<size_t>(at)]);
          if (t == DType::i32) want = std::trunc(want);
          ASSERT_NEAR(got[static_cast<size_t>(i)], want, tolerance(t) * std::max(1.0, std::fabs(want)))
              << c.name;
        }
      }
    }
  }
}

TEST(Elementwise, IntegersNeverTrap) {
  const Tensor a = Tensor::from<int32_t>({4}, {INT32_MIN, INT32_MIN, 7, -7}),
               b = Tensor::from<int32_t>({4}, {-1, 0, -2, 2});
  EXPECT_EQ(run("div", {a, b})[0].to_ints(), (std::vector<int64_t>{INT32_MIN, 0, -3, -3}));
  EXPECT_EQ(run("mod", {a, b})[0].to_ints(), (std::vector<int64_t>{0, 0, -1, 1}));
  EXPECT_EQ(run("mod", {a, b}, {{"fmod", int64_t{1}}})[0].to_ints(), (std::vector<int64_t>{0, 0, 1, -1}));
  EXPECT_EQ(run("abs", {a})[0].to_ints(), (std::vector<int64_t>{INT32_MIN, INT32_MIN, 7, 7}));
}

TEST(Elementwise, MinAndMaxKeepNaN) {
  const float nan = std::nanf("");
  const Tensor a = Tensor::from<float>({2}, {nan, 1.0f}), b = Tensor::from<float>({2}, {1.0f, nan});
  for (const char* name : {"min", "max"}) {
    for (double v : run(name, {a, b})[0].to_doubles()) EXPECT_TRUE(std::isnan(v)) << name;
    for (double v : run(name, {a, b, b})[0].to_doubles()) EXPECT_TRUE(std::isnan(v)) << name;
  }
}

TEST(Elementwise, WrongOperandsAreRefused) {
  EXPECT_THROW(run("add", {random_tensor(DType::f32, {2, 3}, 0, 1), random_tensor(DType::f32, {2}, 0, 1)}),
               base::Error);
  EXPECT_THROW(run("add", {random_tensor(DType::f32, {2}, 0, 1), random_tensor(DType::f64, {2}, 0, 1)}),
               base::Error);
  EXPECT_THROW(run("exp", {ints({1})}), base::Error);
}

TEST(Cast, EveryPairOfTypesKeepsSmallIntegers) {
  // 0 and 1 exist in every type; larger values would clip differently in bool and the signed 2-bit type.
  const Tensor x = Tensor::from<float>({5}, {0, 1, 1, 0, 1});
  for (int64_t from : {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20, 21, 22, 23, 25}) {
    for (int64_t to : {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20, 21, 22, 23, 25}) {
      const Tensor a = run("cast", {x}, {{"to", from}})[0], b = run("cast", {a}, {{"to", to}})[0];
      const Tensor back = run("cast", {b}, {{"to", int64_t{1}}})[0];
      EXPECT_EQ(back.to_doubles(), x.to_doubles()) << from << " to " << to;
    }
  }
}

TEST(Cast, SmallFloatsRoundToNearestOfAllCodes) {
  // The oracle searches all codes for the one with the nearest value.
  for (DType t : {DType::f8e4m3fn, DType::f8e4m3fnuz, DType::f8e5m2, DType::f8e5m2fnuz, DType::f4e2m1}) {
    const int codes = t == DType::f4e2m1 ? 16 : 256;
    base::Rng rng(5);
    for (int k = 0; k < 2000; ++k) {
      const float x = static_cast<float>((rng.uniform() - 0.5) * std::exp2(8 * rng.uniform() - 4));
      double best = INFINITY;
      for (int c = 0; c < codes; ++c) {
        const double v = decode_small_float(t, static_cast<uint8_t>(c));
        if (std::isfinite(v)) best = std::min(best, std::fabs(v - static_cast<double>(x)));
      }
      const double got = decode_small_float(t, encode_small_float(t, x, true));
      ASSERT_EQ(std::fabs(got - static_cast<double>(x)), best) << name_of(t) << " " << x;
    }
    for (int c = 0; c < codes; ++c) {  // every code survives the round trip
      const float v = decode_small_float(t, static_cast<uint8_t>(c));
      if (std::isfinite(v)) {
        EXPECT_EQ(encode_small_float(t, v, true), c) << name_of(t);
      }
    }
  }
}

TEST(Cast, BothKernelsAgreeOnAllPlainTypes) {
  // ONNX numbers of the types with C++ arithmetic; values with fractions, of both signs and beyond the range
  // of small types.
  for (int64_t from : {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16}) {
    const Tensor x = run("cast", {random_tensor(DType::f64, {777}, -300, 300)}, {{"to", from}})[0];
    for (int64_t to : {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16}) {
      const ir::Attrs attrs{{"to", to}};
      EXPECT_TRUE(
          run_kernel("cast", "vector", {x}, attrs).same_as(run_kernel("cast", "reference", {x}, attrs)))
          << from << " to " << to;
    }
  }
}

TEST(Cast, FloatsClampToIntegers) {
  const Tensor x = Tensor::from<float>({4}, {1e20f, -1e20f, std::nanf(""), -1.9f});
  EXPECT_EQ(run("cast", {x}, {{"to", int64_t{6}}})[0].to_ints(),
            (std::vector<int64_t>{INT32_MAX, INT32_MIN, 0, -1}));
  EXPECT_EQ(run("cast", {x}, {{"to", int64_t{2}}})[0].to_ints(), (std::vector<int64_t>{255, 0, 0, 0}));
}

TEST(Special, WhereClipPowShift) {
  const Tensor c = Tensor::from<bool>({2, 1}, {true, false}), a = Tensor::from<int64_t>({3}, {1, 2, 3});
  EXPECT_EQ(run("where", {c, a, Tensor::scalar<int64_t>(9)})[0].to_ints(),
            (std::vector<int64_t>{1, 2, 3, 9, 9, 9}));
  EXPECT_EQ(run("clip", {a, {}, Tensor::scalar<int64_t>(2)})[0].to_ints(), (std::vector<int64_t>{1, 2, 2}));
  EXPECT_EQ(run("clip", {Tensor::from<float>({2}, {-5, 5}), Tensor::scalar(-1.f)})[0].to_doubles(),
            (std::vector<double>{-1, 5}));
  EXPECT_EQ(run("pow", {a, Tensor::scalar(2.f)})[0].to_ints(), (std::vector<int64_t>{1, 4, 9}));
  const Tensor u = Tensor::from<uint8_t>({2}, {0x81, 3}), by = Tensor::from<uint8_t>({2}, {1, 8});
  EXPECT_EQ(run("bit_shift", {u, by}, {{"direction", std::string("LEFT")}})[0].to_ints(),
            (std::vector<int64_t>{2, 0}));
}

TEST(Special, TrainingDropoutKeepsTheMean) {
  const Tensor x = random_tensor(DType::f32, {20001}, 1, 2);
  const std::vector<Tensor> y =
      run("dropout", {x, Tensor::scalar(0.25f), Tensor::scalar(true)}, {{"seed", int64_t{3}}}, 2);
  const std::vector<double> in = x.to_doubles(), out = y[0].to_doubles(), mask = y[1].to_doubles();
  double kept = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_NEAR(out[i], mask[i] * in[i] / 0.75, 1e-6);
    kept += mask[i];
  }
  EXPECT_NEAR(kept / 20001, 0.75, 0.015);  // five standard errors
  EXPECT_TRUE(run("dropout", {x, Tensor::scalar(0.25f)})[0].same_as(x));
}

TEST(Fused, AgreesWithItsExpansion) {
  const ir::OpDef& op = table().need("fused_elementwise");
  const ir::Attrs attrs{
      {"steps", std::vector<std::string>{"r0 mul i0 i1", "r1 add r0 i2", "r2 sigmoid r1", "r3 leaky_relu r2",
                                         "o0 muladd r3 c0 i3", "o1 gelu_tanh r1"}},
      {"params", std::vector<double>{0, 0, 0, 0, 0, 0, 0.1, 0, 0, 0, 0, 0}},
      {"constants", std::vector<double>{2.5}}};
  const std::vector<Tensor> in{random_tensor(DType::f32, {3, 4, 50}, -2, 2),
                               random_tensor(DType::f32, {50}, -2, 2, 2),
                               random_tensor(DType::f32, {3, 4, 1}, -2, 2, 3), Tensor::scalar(0.25f)};
  base::ThreadPool pool(2);
  const std::vector<Tensor> got = evaluate(op, attrs, in, 2, pool);
  ir::Graph g;
  std::vector<ir::ValueId> ids;
  for (const Tensor& t : in) ids.push_back(g.add_constant(t));
  g.add(op, ids, attrs, 2);
  const std::vector<ir::ValueId> plain = op.schema.expand(g, g.nodes()[0]);
  // Evaluates the plain nodes one by one.
  std::vector<Tensor> values(g.values().size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = g.values()[i].data;
  for (size_t i = 1; i < g.nodes().size(); ++i) {
    const ir::Node& node = g.nodes()[i];
    std::vector<Tensor> operands;
    for (ir::ValueId id : node.in) operands.push_back(values[index(id)]);
    values[index(node.out[0])] = evaluate(*node.op, node.attrs, operands, 1, pool)[0];
  }
  for (size_t r = 0; r < 2; ++r) {
    const std::vector<double> w = values[index(plain[r])].to_doubles(), v = got[r].to_doubles();
    ASSERT_EQ(values[index(plain[r])].dims(), got[r].dims());
    for (size_t i = 0; i < w.size(); ++i) ASSERT_NEAR(v[i], w[i], 1e-5) << r;
  }
}

TEST(Fused, BadProgramsAreRefused) {
  const Tensor x = random_tensor(DType::f32, {4}, 0, 1);
  for (const char* step :
       {"o0 relu r0", "o0 relu", "x0 relu i0", "o0 nothing i0", "r0 relu i0", "o0 add i0 i9"}) {
    EXPECT_THROW(run("fused_elementwise", {x}, {{"steps", std::vector<std::string>{step}}}), base::Error)
        << step;
  }
}

}  // namespace
}  // namespace trireme::ops
