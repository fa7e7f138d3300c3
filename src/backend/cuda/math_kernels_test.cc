// Kernels that no operator reaches: products with 8-bit operands, gradients of activations and saved
// arguments, against plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/cuda/dense/gemm.h"
#include "tests/run_on_device.h"

namespace trireme::cuda {
namespace {

using tensor::BFloat16;
using tensor::DType;

/// A device and a stream, with copies in both directions.
class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    device_ = tests::open_test_device(why);
    if (device_ == nullptr) GTEST_SKIP() << why;
    stream_ = device_->open_stream(pool_);
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    memory_.push_back(device_->allocate(std::max<int64_t>(bytes, 1)));
    stream_->upload(memory_.back().get(), values.data(), bytes);
    stream_->synchronize();
    return static_cast<T*>(memory_.back().get());
  }
  template <class T>
  std::vector<T> download(const T* from, size_t n) {
    std::vector<T> out(n);
    stream_->download(out.data(), from, static_cast<int64_t>(n * sizeof(T)));
    stream_->synchronize();
    return out;
  }
  void* room(int64_t bytes) { return upload(std::vector<std::byte>(static_cast<size_t>(bytes + 1))); }

  base::ThreadPool pool_{1};
  std::unique_ptr<tensor::Device> device_;
  std::unique_ptr<tensor::Stream> stream_;
  std::vector<std::shared_ptr<void>> memory_;
};

template <class T>
std::vector<T> normal_values(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, scale);
  std::vector<T> out(n);
  for (T& v : out) v = T(draw(random));
  return out;
}

class Products : public OnDevice {
 protected:
  void run(const GemmShape& shape, const GemmPointers& pointers) {
    base::SharedCache shared;
    const auto plan = prepare_gemm({device_.get(), &shared}, shape);
    plan->run(*stream_, pointers, room(plan->workspace_bytes()));
  }
};

TEST_F(Products, OfBytesIntoWords) {
  constexpr int64_t kM = 16, kN = 32, kK = 64;
  std::mt19937 random(1);
  std::vector<int8_t> a(kM * kK), b(kN * kK);
  for (int8_t& v : a) v = static_cast<int8_t>(random());
  for (int8_t& v : b) v = static_cast<int8_t>(random());
  auto* y = upload(std::vector<int32_t>(kM * kN));
  run({.m = kM, .n = kN, .k = kK, .transpose_b = true, .in = DType::i8, .in_b = DType::i8, .out = DType::i32},
      {.a = upload(a), .b = upload(b), .out = y});
  const auto got = download(y, kM * kN);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      int32_t want = 0;
      for (int64_t l = 0; l < kK; ++l) want += a[size_t(i * kK + l)] * b[size_t(j * kK + l)];
      ASSERT_EQ(got[size_t(i * kN + j)], want);
    }
  }
}

TEST_F(Products, OfEightBitFloatsWithScales) {
  constexpr int64_t kM = 16, kN = 16, kK = 32;
  // e4m3fn: 0x38 is 1, 0x40 is 2, 0x30 is 0.5, 0xb8 is -1.
  const uint8_t codes[] = {0x38, 0x40, 0x30, 0xb8, 0x00};
  const float values[] = {1, 2, 0.5f, -1, 0};
  std::vector<uint8_t> a(kM * kK), b(kN * kK);
  for (size_t i = 0; i < a.size(); ++i) a[i] = codes[i * 7 % 5];
  for (size_t i = 0; i < b.size(); ++i) b[i] = codes[i * 3 % 5];
  auto* y = upload(std::vector<BFloat16>(kM * kN));
  run({.m = kM,
       .n = kN,
       .k = kK,
       .transpose_b = true,
       .in = DType::f8e4m3fn,
       .in_b = DType::f8e4m3fn,
       .out = DType::bf16,
       .scales = Scales::single},
      {.a = upload(a),
       .b = upload(b),
       .out = y,
       .scale_a = upload(std::vector<float>{0.5f}),
       .scale_b = upload(std::vector<float>{4.0f})});
  const auto got = download(y, kM * kN);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      float want = 0;
      for (int64_t l = 0; l < kK; ++l)
        want += 2 * values[size_t(i * kK + l) * 7 % 5] * values[size_t(j * kK + l) * 3 % 5];
      ASSERT_EQ(float(got[size_t(i * kN + j)]), float(BFloat16(want)));
    }
  }
}

/// The library chooses an algorithm for the alignment that it is told.
TEST_F(Products, OfMatricesThatAreLessAlignedAreRefusedOnTheStandIn) {
  if (has_toolkit()) GTEST_SKIP() << "a GPU does not check";
  auto* a = upload(std::vector<float>(64));
  auto* y = upload(std::vector<float>(64));
  const GemmShape shape{.m = 3, .n = 4, .k = 5};
  EXPECT_NO_THROW(run(shape, {.a = a, .b = a, .out = y + 4}));
  EXPECT_THROW(run(shape, {.a = a, .b = a, .out = y + 2}), base::Error);
  EXPECT_THROW(run(shape, {.a = a + 1, .b = a, .out = y}), base::Error);
}

TEST_F(Products, KeepTheArgumentOfAnActivationAndMultiplyByItsSlope) {
  constexpr int64_t kM = 5, kN = 8, kK = 3;
  const auto a = normal_values<float>(kM * kK, 1), b = normal_values<float>(kK * kN, 2),
             bias = normal_values<float>(kN, 3);
  auto *y = upload(std::vector<float>(kM * kN)), *z = upload(std::vector<float>(kM * kN));
  const ActivationForm act{.kind = Activation::gelu_tanh};
  run({.m = kM, .n = kN, .k = kK, .finish = {.bias = true, .act = act, .writes_aux = true}},
      {.a = upload(a), .b = upload(b), .out = y, .bias = upload(bias), .aux = z});
  const auto value = download(y, kM * kN), argument = download(z, kM * kN);
  auto* g = upload(std::vector<float>(kM * kN));
  run({.m = kM, .n = kN, .k = kK, .finish = {.act = act, .is_gradient = true}},
      {.a = upload(a), .b = upload(b), .out = g, .aux = z});
  const auto slope = download(g, kM * kN);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < kK; ++l) sum += double(a[size_t(i * kK + l)]) * double(b[size_t(l * kN + j)]);
      const double x = sum + double(bias[size_t(j)]);
      const auto gelu = [](double u) {
        return 0.5 * u * (1 + std::tanh(0.7978845608028654 * (u + 0.044715 * u * u * u)));
      };
      const auto at = size_t(i * kN + j);
      ASSERT_NEAR(double(argument[at]), x, 1e-5);
      ASSERT_NEAR(double(value[at]), gelu(x), 1e-5);
      ASSERT_NEAR(double(slope[at]), sum * (gelu(x + 1e-4) - gelu(x - 1e-4)) / 2e-4, 1e-4);
    }
  }
}

}  // namespace
}  // namespace trireme::cuda
