// Products with weights in 8- and 16-bit floats, and the values of stored weights of every form.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/table.h"
#include "ops/weight_only/weight_only.h"
#include "tensor/small_float_math.h"
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;

/// Contains every code of E4M3 in turn.
Tensor all_codes(int64_t n, int64_t k) {
  Tensor w = Tensor::empty(DType::f8e4m3fn, {n, k});
  for (int64_t i = 0; i < n * k; ++i) w.mutable_raw()[i] = static_cast<std::byte>(i * 7 % 256);
  return w;
}

/// The same without NaN.
Tensor numbers(int64_t n, int64_t k) {
  Tensor w = all_codes(n, k);
  for (int64_t i = 0; i < n * k; ++i) {
    if ((w.raw()[i] & std::byte{0x7f}) == std::byte{0x7f}) w.mutable_raw()[i] = std::byte{0x31};
  }
  return w;
}

/// The product in double, from the definition.
std::vector<double> plain(const Tensor& x, const std::vector<double>& w, const std::vector<double>& bias) {
  const int64_t m = x.dims()[0], k = x.dims()[1], n = static_cast<int64_t>(bias.size());
  const std::vector<double> rows = x.to_doubles();
  std::vector<double> y;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      double sum = bias[static_cast<size_t>(c)];
      for (int64_t i = 0; i < k; ++i)
        sum += rows[static_cast<size_t>(r * k + i)] * w[static_cast<size_t>(c * k + i)];
      y.push_back(sum);
    }
  }
  return y;
}

struct Floats {
  std::vector<Tensor> in;  ///< w, and scales if there are any
  std::vector<double> w;
  ir::Attrs attrs;
};

Floats floats_of(DType type, int64_t n, int64_t k, int64_t group) {
  if (type != DType::f8e4m3fn) {
    const Tensor w = tests::rounded_to(type, random_tensor({n, k}, 3));
    return {{w}, w.to_doubles(), {}};
  }
  Floats f{{numbers(n, k), random_tensor({n, k / group}, 4)}, {}, {{"group", group}}};
  const std::vector<double> scale = f.in[1].to_doubles();
  for (int64_t i = 0; i < n * k; ++i) {
    const float code = tensor::decode_small_float(type, std::to_integer<uint8_t>(f.in[0].raw()[i]));
    f.w.push_back(static_cast<double>(code) *
                  scale[static_cast<size_t>(i / k * (k / group) + i % k / group)]);
  }
  return f;
}

/// The tolerance for f32 sums of a thousand numbers of up to 448.
constexpr double kAbsolute = 1e-2;

TEST(WeightOnlyFloats, EveryKernelAndTheExpansion) {
  struct Case {
    int64_t rows, n, k, group;
  };
  for (const DType type : {DType::f8e4m3fn, DType::bf16, DType::f16}) {
    for (const Case& c : {Case{1, 7, 128, 128}, Case{3, 9, 96, 32}, Case{33, 5, 1088, 64}, Case{0, 4, 64, 64},
                          Case{41, 70, 1088, 64}, Case{8, 6, 2112, 64}}) {
      const Floats f = floats_of(type, c.n, c.k, c.group);
      const Tensor x = random_tensor({c.rows, c.k}, 6), bias = random_tensor({c.n}, 5);
      std::vector<Tensor> in{x, f.in[0], f.in.size() > 1 ? f.in[1] : Tensor(), Tensor(), bias};
      const std::vector<double> want = plain(x, f.w, bias.to_doubles());
      const auto results = tests::run_kernels("weight_only_linear", f.attrs, in, 1, {});
      ASSERT_GE(results.size(), 2u);
      for (const auto& r : results) tests::expect_close(r.out[0], want, 2e-5, kAbsolute, r.kernel);
      tests::expect_close(tests::run_expanded("weight_only_linear", f.attrs, in)[0], want, 2e-5, kAbsolute,
                          "expand");
    }
  }
}

TEST(WeightOnlyFloats, BrokenWeightsStayBroken) {
  const Tensor w = all_codes(8, 32), x = Tensor::zeros(DType::f32, {1, 32});
  const Tensor scale = Tensor::from<float>({8, 1}, {1, 2, 1, 1, 1, 1, 1, 1});
  base::ThreadPool pool(1);
  const Tensor y =
      evaluate(table().need("weight_only_linear"), {{"group", int64_t{32}}}, {x, w, scale}, 1, pool)[0];
  for (size_t n = 0; n < 8; ++n) {
    bool has_nan = false;
    for (size_t i = 0; i < 32; ++i) has_nan |= (w.raw()[n * 32 + i] & std::byte{0x7f}) == std::byte{0x7f};
    EXPECT_EQ(std::isnan(y.data<float>()[n]), has_nan) << n;
  }
}

TEST(WeightOnlyFloats, RowsDoNotDependOnTheirMates) {
  base::ThreadPool pool(3);
  for (const DType type : {DType::f8e4m3fn, DType::bf16, DType::f16}) {
    const Floats f = floats_of(type, 43, 2432, 64);
    const Tensor x = random_tensor({37, 2432}, 6);
    const ir::OpDef& def = table().need("weight_only_linear");
    std::vector<Tensor> in{x};
    in.insert(in.end(), f.in.begin(), f.in.end());
    const Tensor all = evaluate(def, f.attrs, in, 1, pool)[0];
    for (const int64_t together : {1, 6, 17}) {
      for (int64_t r = 0; r < 37; r += together) {
        const int64_t end = std::min<int64_t>(37, r + together);
        in[0] = x.rows(r, end).clone();
        EXPECT_TRUE(evaluate(def, f.attrs, in, 1, pool)[0].same_as(all.rows(r, end).clone()))
            << r << " to " << end;
      }
    }
  }
}

TEST(DequantizeWeights, EveryForm) {
  const Tensor order = Tensor::from<int32_t>({6}, {5, 0, 4, 1, 3, 2});
  const Tensor bytes = Tensor::from<uint8_t>({1, 6}, {0, 1, 127, 128, 255, 10});
  const Tensor scale = Tensor::from<float>({1, 2}, {0.5f, 2}), zero = Tensor::from<int8_t>({1, 2}, {-1, 3});
  const ir::Attrs attrs{{"bits", int64_t{8}}, {"group", int64_t{3}}};
  const std::vector<double> want{(10 - 3) * 2.0, 0.5, (-1 - 3) * 2.0, 1, (-128 - 3) * 2.0, 64};
  const std::vector<Tensor> in{bytes, scale, zero, order};
  for (const auto& r : tests::run_kernels("dequantize_weights", attrs, in, 1, {}))
    EXPECT_EQ(r.out[0].to_doubles(), want) << r.kernel;
  EXPECT_EQ(tests::run_expanded("dequantize_weights", attrs, in)[0].to_doubles(), want);
  for (const DType type : {DType::f8e4m3fn, DType::bf16, DType::f16}) {
    const Floats f = floats_of(type, 3, 64, 32);
    const auto results = tests::run_kernels("dequantize_weights", f.attrs, f.in, 1, {});
    for (const auto& r : results) tests::expect_close(r.out[0], f.w, 1e-6, 1e-6, r.kernel);
    tests::expect_close(tests::run_expanded("dequantize_weights", f.attrs, f.in)[0], f.w, 1e-6, 1e-6,
                        "expand");
  }
  // An index that is not a column is an error of the file, whichever check finds it.
  const Tensor wrong = Tensor::from<int32_t>({6}, {5, 0, 4, 1, 3, 6});
  base::ThreadPool pool(1);
  EXPECT_THROW(evaluate(table().need("dequantize_weights"), attrs, {bytes, scale, zero, wrong}, 1, pool),
               base::Error);
}

}  // namespace
}  // namespace trireme::ops
