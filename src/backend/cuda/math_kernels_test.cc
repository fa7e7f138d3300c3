// What no operator reaches: attention over pages, and products with 8-bit operands, gradients of activations
// and kept arguments, against plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/cuda/attention.h"
#include "backend/cuda/gemm.h"
#include "tests/run_on_device.h"

namespace trireme::cuda {
namespace {

using tensor::BFloat16;
using tensor::DType;

/// A device, a stream, and copies there and back.
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
std::vector<T> normal(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, scale);
  std::vector<T> out(n);
  for (T& v : out) v = T(draw(random));
  return out;
}

struct Paged {
  int64_t heads, kv_heads, dim, page_tokens;
  std::vector<int32_t> lengths;
};

class PagedAttention : public OnDevice {
 protected:
  struct Memory {
    std::vector<BFloat16> q, k, v;
    std::vector<int32_t> table;
    int64_t most_pages = 0;
  };

  /// y of one query by plain loops; rows of keys as their token's page says.
  static std::vector<double> naive(const Paged& c, const Memory& m, int64_t sequence, int64_t head) {
    const int64_t kv = head / (c.heads / c.kv_heads), length = c.lengths[static_cast<size_t>(sequence)];
    std::vector<double> y(static_cast<size_t>(c.dim)), p;
    const auto row = [&](int64_t token) {
      const int64_t page = m.table[static_cast<size_t>(sequence * m.most_pages + token / c.page_tokens)];
      return ((page * c.kv_heads + kv) * c.page_tokens + token % c.page_tokens) * c.dim;
    };
    double total = 0;
    for (int64_t t = 0; t < length; ++t) {
      double dot = 0;
      for (int64_t i = 0; i < c.dim; ++i)
        dot += double(m.q[size_t((sequence * c.heads + head) * c.dim + i)]) * double(m.k[size_t(row(t) + i)]);
      p.push_back(std::exp(dot * 0.1));
      total += p.back();
    }
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < c.dim; ++i)
        y[size_t(i)] += p[size_t(t)] / total * double(m.v[size_t(row(t) + i)]);
    }
    return y;
  }

  void expect_as_naive(const Paged& c) {
    const auto sequences = static_cast<int64_t>(c.lengths.size());
    Memory m;
    int64_t pages = 1;
    for (int32_t length : c.lengths)
      m.most_pages = std::max<int64_t>(m.most_pages, (length + c.page_tokens - 1) / c.page_tokens);
    // Pages lie in no order, and not all of the table is used.
    for (int64_t i = 0; i < sequences * m.most_pages; ++i, ++pages)
      m.table.push_back(static_cast<int32_t>(sequences * m.most_pages - i));
    m.q = normal<BFloat16>(size_t(sequences * c.heads * c.dim), 1);
    const auto size = size_t(pages * c.kv_heads * c.page_tokens * c.dim);
    m.k = normal<BFloat16>(size, 2);
    m.v = normal<BFloat16>(size, 3);
    PagedAttentionArgs args{.q = upload(m.q),
                            .k_pages = upload(m.k),
                            .v_pages = upload(m.v),
                            .table = upload(m.table),
                            .lengths = upload(c.lengths),
                            .sequences = sequences,
                            .heads = c.heads,
                            .kv_heads = c.kv_heads,
                            .dim = c.dim,
                            .page_tokens = c.page_tokens,
                            .most_pages = m.most_pages,
                            .scale = 0.1f};
    auto* y = upload(normal<BFloat16>(m.q.size(), 4));
    args.y = y;
    args.workspace = room(paged_attention_workspace_bytes(args));
    paged_attention(*stream_, args);
    const auto got = download(y, m.q.size());
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t h = 0; h < c.heads; ++h) {
        const auto want = naive(c, m, s, h);
        for (int64_t i = 0; i < c.dim; ++i)
          ASSERT_NEAR(double(got[size_t((s * c.heads + h) * c.dim + i)]), want[size_t(i)], 1e-2)
              << "sequence " << s << " head " << h << " channel " << i;
      }
    }
  }
};

TEST_F(PagedAttention, SequencesOfAllLengths) {
  expect_as_naive({.heads = 2, .kv_heads = 2, .dim = 64, .page_tokens = 16, .lengths = {1, 0, 17, 300}});
  expect_as_naive({.heads = 4, .kv_heads = 2, .dim = 128, .page_tokens = 32, .lengths = {256, 257, 31}});
}

TEST_F(PagedAttention, GroupsOfHeads) {
  expect_as_naive({.heads = 8, .kv_heads = 2, .dim = 128, .page_tokens = 16, .lengths = {600, 40}});
  expect_as_naive({.heads = 6, .kv_heads = 1, .dim = 64, .page_tokens = 5, .lengths = {23}});
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
       .scaled = true},
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

TEST_F(Products, KeepTheArgumentOfAnActivationAndMultiplyByItsSlope) {
  constexpr int64_t kM = 5, kN = 8, kK = 3;
  const auto a = normal<float>(kM * kK, 1), b = normal<float>(kK * kN, 2), bias = normal<float>(kN, 3);
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
