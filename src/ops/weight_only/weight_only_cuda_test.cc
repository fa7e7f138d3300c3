// weight_only_linear on CPU and device: every kernel against plain sums with the stored weights.
#include <cmath>

#include "backend/cpu/dense/weight_rows.h"
#include "ops/weight_only/weight_only.h"
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;
using tests::rounded_to;

struct WeightOnlyCase {
  int64_t rows, n, k;
  WeightForm form;
};

/// The operands x, weights, scale, zero (optional), bias (optional).
std::vector<Tensor> operands(const WeightOnlyCase& c, DType type, bool has_bias) {
  const Tensor w = random_tensor({c.n, c.k}, 3);
  WeightError error;
  const StoredWeights s = store_weights({w.data<float>().data(), c.n, c.k}, c.form, error);
  std::vector<Tensor> in{rounded_to(type, random_tensor({c.rows, c.k}, 4)), s.w, s.scale, s.zero};
  if (has_bias) in.push_back(rounded_to(type, random_tensor({c.n}, 5)));
  return in;
}

const std::vector<WeightOnlyCase> kCases{
    {1, 1, 32, {8, 32, false}},  {1, 7, 128, {4, 128, true}},   {3, 9, 96, {4, 32, false}},
    {16, 5, 192, {8, 64, true}}, {17, 6, 64, {4, 64, false}},   {40, 13, 256, {8, 128, false}},
    {2, 4, 2080, {4, 32, true}}, {35, 3, 1152, {8, 128, true}}, {0, 4, 64, {8, 64, false}}};

ir::Attrs attrs_of(const WeightOnlyCase& c) {
  return {{"bits", static_cast<int64_t>(c.form.bits)}, {"group", c.form.group}};
}

/// The product in double, from the definition.
std::vector<double> plain(const WeightOnlyCase& c, const std::vector<Tensor>& in) {
  const std::vector<double> x = in[0].to_doubles(), scale = in[2].to_doubles();
  std::vector<double> zero(scale.size(), default_zero(c.form.bits)), bias(static_cast<size_t>(c.n));
  if (in[3].defined()) zero = in[3].to_doubles();
  if (in.size() > 4) bias = in[4].to_doubles();
  const auto* bytes = reinterpret_cast<const uint8_t*>(in[1].raw());
  std::vector<double> y;
  for (int64_t m = 0; m < c.rows; ++m) {
    for (int64_t n = 0; n < c.n; ++n) {
      double sum = bias[static_cast<size_t>(n)];
      for (int64_t i = 0; i < c.k; ++i) {
        const auto g = static_cast<size_t>(n * (c.k / c.form.group) + i / c.form.group);
        const int q = stored_weight(bytes + n * (c.k * c.form.bits / 8), i, c.form.bits);
        sum += x[static_cast<size_t>(m * c.k + i)] * scale[g] * (q - zero[g]);
      }
      y.push_back(sum);
    }
  }
  return y;
}

TEST(WeightOnly, EveryCpuKernelAndTheExpansion) {
  for (const WeightOnlyCase& c : kCases) {
    for (const bool has_bias : {false, true}) {
      const std::vector<Tensor> in = operands(c, DType::f32, has_bias);
      const std::vector<double> want = plain(c, in);
      const auto results = tests::run_kernels("weight_only_linear", attrs_of(c), in, 1, {});
      ASSERT_GE(results.size(), 2u);
      for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-5, 1e-4, r.kernel);
      tests::expect_close(tests::run_expanded("weight_only_linear", attrs_of(c), in)[0], want, 1e-5, 1e-4,
                          "expand");
    }
  }
}

TEST(WeightOnly, RowsDoNotDependOnTheirMates) {
  base::ThreadPool pool(3);
  for (const WeightForm& form : {WeightForm{8, 64, false}, WeightForm{4, 32, true}}) {
    const WeightOnlyCase c{37, 11, 1216 * 2, form};
    const std::vector<Tensor> in = operands(c, DType::f32, true);
    const ir::OpDef& def = table().need("weight_only_linear");
    const Tensor all = evaluate(def, attrs_of(c), in, 1, pool)[0];
    for (int64_t r = 0; r < c.rows; ++r) {
      std::vector<Tensor> one = in;
      one[0] = in[0].rows(r, r + 1).clone();
      EXPECT_TRUE(evaluate(def, attrs_of(c), one, 1, pool)[0].same_as(all.rows(r, r + 1).clone())) << r;
    }
  }
}

TEST(WeightOnly, StoredWeightsAreNear) {
  const Tensor w = random_tensor({16, 256}, 6);
  const auto relative = [&](WeightForm form) {
    WeightError error;
    store_weights({w.data<float>().data(), 16, 256}, form, error);
    return error.relative;
  };
  EXPECT_LT(relative({8, 128, false}), 0.008);
  EXPECT_LT(relative({8, 32, true}), 0.006);
  EXPECT_LT(relative({4, 128, false}), 0.14);
  EXPECT_LT(relative({4, 32, false}), 0.10);
  EXPECT_LT(relative({4, 32, true}), relative({4, 128, true}));
  EXPECT_TRUE(refuse_weight_form({4, 64, false}, 96).has_value());
  EXPECT_TRUE(refuse_weight_form({5, 64, false}, 128).has_value());
}

TEST(WeightOnly, WeightsThatAreNotFiniteAreRefused) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const int bits : {8, 4}) {
      for (const bool by_rows : {true, false}) {
        Tensor w = random_tensor({16, 256}, 6);
        w.mutable_data<float>()[700] = bad;
        const WeightMatrix matrix{w.data<float>().data(), 16, 256, by_rows};
        WeightError error;
        EXPECT_THROW(store_weights(matrix, {bits, 64, false}, error), base::Error) << bad << " in " << bits;
      }
    }
  }
}

TEST(WeightOnlyCuda, AsOnTheCpu) {
  std::string why;
  if (tests::open_test_device(why) == nullptr) GTEST_SKIP() << why;
  for (const WeightOnlyCase& c : kCases) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      const double off = tests::half_tolerance(type) * 4;
      const size_t ran = tests::expect_as_cpu({.op = "weight_only_linear",
                                               .in = operands(c, type, c.n % 2 == 1),
                                               .attrs = attrs_of(c),
                                               .relative = off,
                                               .absolute = off});
      EXPECT_EQ(ran, c.rows > 16 ? 1u : 2u);
    }
  }
}

TEST(WeightOnlyCuda, EachPanelsResultsBeginOnSixteenBytes) {
  for (const auto& [n, k] : std::vector<std::array<int64_t, 2>>{
           {4096, 14336}, {3584, 18944}, {8192, 28672}, {128256, 4096}, {1000, 1 << 20}, {7, 1 << 22}}) {
    for (const int64_t item : {2, 4}) {
      const int64_t panel = weight_panel_rows(n, k * item);
      EXPECT_TRUE(panel == n || panel * item % 16 == 0) << panel << " of " << n;
      EXPECT_LE(panel * k * item, std::max<int64_t>(64 << 20, 64 * k * item));
    }
  }
  EXPECT_EQ(weight_panel_rows(2340, 28672), 2304);
  EXPECT_EQ(weight_panel_rows(2304, 28672), 2304);
  EXPECT_EQ(weight_panel_rows(0, 64), 1);
}

}  // namespace
}  // namespace trireme::ops
