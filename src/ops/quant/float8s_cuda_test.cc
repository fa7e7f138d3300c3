// 8-bit floats on the device against the CPU's results: codes and scales bit for bit, products within
// rounding.
#include <cmath>

#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;
using tests::rounded_to;

constexpr DType kDeviceTypes[] = {DType::f32, DType::f16, DType::bf16};

/// Rows of several magnitudes: one of zeros, one with an infinity, one with a NaN, one of subnormal numbers.
Tensor rows(const Dims& dims, uint32_t seed) {
  Tensor x = random_tensor(dims, seed, 0.1f);
  const int64_t n = dims.back(), count = n == 0 ? 0 : x.elements() / n;
  auto v = x.mutable_data<float>();
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      float& e = v[static_cast<size_t>(r * n + i)];
      e *= std::ldexp(1.0f, static_cast<int>(r % 11) - 5);
      if (r % 13 == 3) e = 0;
      if (r % 13 == 5 && i == n / 2) e = -INFINITY;
      if (r % 13 == 7 && i == 0) e = NAN;
      if (r % 13 == 9) e *= 1e-38f;
    }
  }
  return x;
}

TEST(Float8Cuda, CodesAndScales) {
  const std::vector<Dims> shapes{{1, 1},  {2, 16},  {0, 8},    {3, 0},     {5, 7},
                                 {17, 9}, {70, 64}, {66, 132}, {2, 3, 40}, {130, 2056}};
  for (const DType type : kDeviceTypes) {
    for (const Dims& dims : shapes) {
      for (const int64_t e5m2 : {0, 1}) {
        const Tensor x = rounded_to(type, rows(dims, 3));
        const ir::Attrs attrs{{"e5m2", e5m2}};
        for (const auto& [op, results] :
             {std::pair{"float8_rows", 2}, {"float8_columns", 2}, {"float8_both", 4}})
          tests::expect_as_cpu({.op = op,
                                .in = {x},
                                .attrs = attrs,
                                .out_count = static_cast<size_t>(results),
                                .relative = 0,
                                .absolute = 0,
                                .kernels = 1});
        // Includes sums of columns, which the device adds in an order of its own.
        for (const auto& [op, results] : {std::pair{"float8_columns", 3}, {"float8_both", 5}})
          tests::expect_as_cpu({.op = op,
                                .in = {x},
                                .attrs = attrs,
                                .out_count = static_cast<size_t>(results),
                                .relative = 1e-5,
                                .absolute = 1e-4});
      }
    }
  }
}

std::vector<Tensor> quantized_rows(const Tensor& x, int64_t e5m2) {
  base::ThreadPool pool(1);
  return evaluate(table().need("float8_rows"), {{"e5m2", e5m2}}, {x}, 2, pool);
}

TEST(Float8Cuda, Values) {
  for (const int64_t e5m2 : {0, 1}) {
    for (const char* type : {"f32", "f16", "bf16"}) {
      tests::expect_as_cpu({.op = "float8_values",
                            .in = quantized_rows(rows({19, 33}, 4), e5m2),
                            .attrs = {{"type", std::string(type)}},
                            .relative = 0,
                            .absolute = 0,
                            .kernels = 1});
    }
  }
}

double activated(const std::string& act, double z) {
  if (act == "relu") return std::max(z, 0.0);
  if (act == "silu") return z / (1 + std::exp(-z));
  if (act == "gelu_erf") return z * 0.5 * (1 + std::erf(z / std::sqrt(2.0)));
  if (act == "gelu_tanh")
    return z * 0.5 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (z + 0.044715 * z * z * z)));
  return z;
}

/// The numbers that 8-bit floats stand for.
std::vector<double> numbers_of(const Tensor& codes) {
  base::ThreadPool pool(1);
  return evaluate(table().need("cast"), {{"to", int64_t{1}}}, {codes}, 1, pool)[0].to_doubles();
}

/// Sets the expected result of a float8_product from f64, with separate tolerances: f32 sums on the CPU are
/// off by one rounding per term. GPUs align the terms of 8-bit products to the largest one and keep 13 bits
/// after its point, although they accumulate in f32.
void judge_in_f64(tests::DeviceTrial& trial, const std::string& act) {
  const std::vector<double> a = numbers_of(trial.in[0]), scale_a = trial.in[1].to_doubles();
  const std::vector<double> b = numbers_of(trial.in[2]), scale_b = trial.in[3].to_doubles();
  const auto operand = [&](size_t i) {
    return trial.in.size() > i && trial.in[i].defined() ? trial.in[i].to_doubles() : std::vector<double>();
  };
  const std::vector<double> bias = operand(4), residual = operand(5);
  const size_t m = scale_a.size(), n = scale_b.size(), k = a.size() / m;
  constexpr double kSteepest = 1.13;  // largest slope of the activations
  for (size_t i = 0; i < m * n; ++i) {
    double sum = 0, magnitude = 0;
    for (size_t l = 0; l < k; ++l) {
      const double term = a[i / n * k + l] * b[i % n * k + l];
      sum += term;
      magnitude += std::abs(term);
    }
    const double scale = scale_a[i / n] * scale_b[i % n];
    const double more = (bias.empty() ? 0 : bias[i % n]) + (residual.empty() ? 0 : residual[i]);
    const double y = activated(act, sum * scale + more), off = kSteepest * magnitude * std::abs(scale);
    const double rounded = trial.absolute / 4 + trial.relative * std::abs(y);
    trial.exact.push_back(y);
    trial.cpu_within.push_back(rounded + off * static_cast<double>(k) * std::ldexp(1.0, -24));
    trial.device_within.push_back(rounded + off * std::ldexp(1.0, -12));
  }
}

struct Float8Product {
  int64_t m, n, k;
  bool bias, residual;
  const char* act;
  int64_t a5 = 0, b5 = 0;
};
const std::vector<Float8Product> kProducts{{1, 16, 16, false, false, "none"},
                                           {5, 32, 48, true, false, "gelu_tanh"},
                                           {33, 48, 160, true, true, "relu", 1},
                                           {17, 16, 32, false, true, "silu", 0, 1},
                                           {16, 64, 512, true, true, "gelu_erf"}};

TEST(Float8Cuda, Products) {
  for (const Float8Product& c : kProducts) {
    for (const DType type : kDeviceTypes) {
      // Rows without infinities, because rows of NaN compare as equal whatever their scales are.
      Tensor x = random_tensor({c.m, c.k}, 5);
      for (size_t i = 0; i < static_cast<size_t>(x.elements()); ++i)
        x.mutable_data<float>()[i] *= std::ldexp(1.0f, static_cast<int>(i / size_t(c.k) % 5));
      std::vector<Tensor> in = quantized_rows(x, c.a5);
      for (const Tensor& t : quantized_rows(random_tensor({c.n, c.k}, 6), c.b5)) in.push_back(t);
      in.push_back(c.bias ? rounded_to(type, random_tensor({c.n}, 7)) : Tensor());
      if (c.residual) in.push_back(rounded_to(type, random_tensor({c.m, c.n}, 8)));
      const double off = tests::half_tolerance(type);
      tests::DeviceTrial trial{
          .op = "float8_product",
          .in = in,
          .attrs = {{"type", std::string(name_of(type))}, {"activation", std::string(c.act)}},
          .relative = off,
          .absolute = off * 4,
          .kernels = 1};
      judge_in_f64(trial, c.act);
      tests::expect_as_cpu(trial);
    }
  }
}

TEST(Float8Cuda, RowsWithInfinitiesGiveNaN) {
  std::vector<Tensor> in = quantized_rows(rows({14, 32}, 5), 0);
  for (const Tensor& t : quantized_rows(random_tensor({16, 32}, 6), 0)) in.push_back(t);
  tests::DeviceTrial trial{.op = "float8_product", .in = in, .attrs = {{"type", std::string("f32")}}};
  judge_in_f64(trial, "none");
  tests::expect_as_cpu(trial);
  base::ThreadPool pool(1);
  const Tensor y = evaluate(table().need("float8_product"), {{"type", std::string("f32")}}, in, 1, pool)[0];
  for (int64_t r = 0; r < 14; ++r) {
    for (int64_t i = 0; i < 16; ++i)
      EXPECT_EQ(std::isnan(y.data<float>()[static_cast<size_t>(r * 16 + i)]), r == 5 || r == 7) << r;
  }
}

TEST(Float8Cuda, ExtentsThatTheLibraryDoesNotTakeAreRefused) {
  for (const auto& [n, k] : {std::pair{int64_t{8}, int64_t{32}}, {16, 24}}) {
    std::vector<Tensor> in = quantized_rows(random_tensor({4, k}, 5), 0);
    for (const Tensor& t : quantized_rows(random_tensor({n, k}, 6), 0)) in.push_back(t);
    tests::expect_as_cpu({.op = "float8_product", .in = in, .kernels = 0});
  }
}

}  // namespace
}  // namespace trireme::ops
