// Tests 8-bit products bit by bit against integer loops: signs, zero points, odd depths, every level and
// output type.
#include "backend/cpu/quant/qgemm_s8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace trireme::cpu {
namespace {

struct Case {
  int64_t m, k, n;
  bool a_signed, b_signed;
  int32_t a_zero, b_zero;  // b_zero is in the weights' own type; column n adds n % 3
  bool vary_zero;
};

class Product {
 public:
  Product(const Case& s, Isa isa) : s_(s), isa_(isa) {
    std::mt19937 generator(static_cast<uint32_t>(s.m * 7 + s.k));
    a_.resize(static_cast<size_t>(s.m * s.k + 1));
    b_.resize(static_cast<size_t>(s.n * s.k));
    // Extreme bytes are frequent, because saturating instructions would show with the largest products.
    for (uint8_t& x : a_)
      x = generator() % 4 ? static_cast<uint8_t>(generator()) : (s.a_signed ? 0x80 : 0xff);
    for (uint8_t& x : b_)
      x = generator() % 4 ? static_cast<uint8_t>(generator()) : (s.b_signed ? 0x7f : 0xff);
    for (int64_t j = 0; j < s.n; ++j) {
      bias_.push_back(static_cast<int32_t>(generator() % 20001) - 10000);
      zeros_.push_back(s.b_zero + (s.vary_zero ? static_cast<int32_t>(j % 3) : 0));
      scale_.push_back(0.0001f * static_cast<float>(1 + generator() % 50));
    }
  }

  int64_t exact(int64_t i, int64_t j) const {
    int64_t sum = bias_[static_cast<size_t>(j)];
    for (int64_t k = 0; k < s_.k; ++k) {
      const uint8_t x = a_[static_cast<size_t>(1 + i * s_.k + k)], y = b_[static_cast<size_t>(j * s_.k + k)];
      const int64_t av = s_.a_signed ? static_cast<int8_t>(x) : x;
      const int64_t bv = s_.b_signed ? static_cast<int8_t>(y) : y;
      sum += (av - s_.a_zero) * (bv - zeros_[static_cast<size_t>(j)]);
    }
    return sum;
  }

  /// Returns c as raw bytes, `element` bytes per value.
  std::vector<char> run(QuantEpilogue e, int64_t element, int threads) {
    std::vector<char> memory(packed_quant_bytes(1, s_.k, s_.n, isa_));
    const PackedQuantMatrix packed =
        pack_quant_b({b_.data(), s_.b_signed, 1, s_.k, s_.n, s_.k, true}, memory.data(), isa_);
    std::vector<int32_t> offsets(bias_.size()), factors(bias_.size());
    const QuantInput input = {s_.a_signed, s_.a_zero};
    const bool needs =
        quant_offsets(packed, input, bias_.data(), zeros_.data(), {offsets.data(), factors.data()});
    e.offsets = offsets.data();
    e.row_factors = needs ? factors.data() : nullptr;
    e.scale = scale_.data();
    std::vector<char> c(static_cast<size_t>(s_.m * s_.n * element) + 64, 0x55);
    std::vector<char> workspace(qgemm_workspace_bytes(s_.m, packed, threads));
    base::ThreadPool pool(threads);
    qgemm({s_.m, a_.data() + 1, s_.k, input, packed, c.data(), s_.n, e}, workspace.data(), pool);
    for (size_t i = c.size() - 64; i < c.size(); ++i) EXPECT_EQ(c[i], 0x55);
    c.resize(c.size() - 64);
    return c;
  }

  const Case& s_;
  Isa isa_;
  std::vector<uint8_t> a_, b_;
  std::vector<int32_t> bias_, zeros_;
  std::vector<float> scale_;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [m, k, n] : {std::array<int64_t, 3>{1, 1, 1},
                                {3, 4, 33},
                                {14, 64, 32},
                                {17, 63, 47},
                                {29, 130, 150},
                                {5, 1024, 70},
                                {79, 24, 144},
                                {200, 16, 63},
                                {33, 200, 70},
                                {18, 128, 15},
                                {100, 36, 16}}) {
    all.push_back({m, k, n, false, true, 0, 0, false});
    all.push_back({m, k, n, false, true, 131, 0, false});
    all.push_back({m, k, n, true, true, -7, 0, false});
    all.push_back({m, k, n, false, false, 114, 120, true});
    all.push_back({m, k, n, true, true, 5, -3, true});
    all.push_back({m, k, n, true, false, -128, 128, false});
  }
  return all;
}

TEST(QgemmS8, SumsAreExactAtEveryLevel) {
  for (const Case& s : cases()) {
    for (const Isa isa : usable_isas()) {
      Product p(s, isa);
      QuantEpilogue e;
      e.output = QuantOutput::s32;
      for (const int threads : {1, 3}) {
        const std::vector<char> c = p.run(e, 4, threads);
        const int32_t* sums = reinterpret_cast<const int32_t*>(c.data());
        for (int64_t i = 0; i < s.m * s.n; ++i) {
          ASSERT_EQ(sums[i], p.exact(i / s.n, i % s.n))
              << to_string(isa) << " m=" << s.m << " k=" << s.k << " n=" << s.n << " at " << i;
        }
      }
    }
  }
}

TEST(QgemmS8, RequantisesLikeOnnx) {
  for (const Case& s : cases()) {
    for (const Isa isa : usable_isas()) {
      Product p(s, isa);
      for (const int kind : {0, 1, 2, 3, 4}) {
        // Finally any finite scales: products past 2^31 and past the range of floats, of either sign.
        const float odd[] = {-0.02f, 1.5f, -3e4f, 1e38f, -3e38f, 1e-40f};
        for (size_t j = 0; kind == 4 && j < p.scale_.size(); ++j) p.scale_[j] = odd[j % 6];
        const QuantOutput output = kind % 2 ? QuantOutput::s8 : QuantOutput::u8;
        QuantEpilogue e;
        e.output = output;
        e.scales_below_one =
            kind == 2 || kind == 3;  // they are here, so the short path and the general one must agree
        e.zero = output == QuantOutput::u8 ? 100 : -10;
        e.lo = output == QuantOutput::u8 ? 100 : -128;  // the first acts as a fused ReLU
        e.hi = output == QuantOutput::u8 ? 255 : 127;
        const std::vector<char> c = p.run(e, 1, kind == 2 ? 1 : 4);
        for (int64_t i = 0; i < s.m * s.n; ++i) {
          const float real =
              static_cast<float>(p.exact(i / s.n, i % s.n)) * p.scale_[static_cast<size_t>(i % s.n)];
          const double rounded = std::nearbyint(static_cast<double>(real)) + e.zero;
          const int64_t want = static_cast<int64_t>(std::min<double>(e.hi, std::max<double>(e.lo, rounded)));
          const char byte = c[static_cast<size_t>(i)];
          ASSERT_EQ(output == QuantOutput::u8 ? int64_t{static_cast<uint8_t>(byte)}
                                              : int64_t{static_cast<int8_t>(byte)},
                    want)
              << to_string(isa);
        }
      }
    }
  }
}

TEST(QgemmS8, FloatOutputRunsTheEpilogue) {
  const Case s = {31, 70, 45, false, true, 9, 0, false};
  for (const Isa isa : usable_isas()) {
    Product p(s, isa);
    std::vector<float> bias(45, 0.25f), residual(31 * 45, -0.5f);
    for (const Activation act : {Activation::relu, Activation::sigmoid}) {
      for (const bool before : {false, true}) {
        QuantEpilogue e;
        e.output = QuantOutput::f32;
        e.real = {bias.data(), residual.data(), act};
        e.real.act_before_residual = before;
        const std::vector<char> c = p.run(e, 4, 2);
        for (int64_t i = 0; i < s.m * s.n; ++i) {
          const auto f = [&](double x) {
            return act == Activation::relu ? std::max(x, 0.0) : 1 / (1 + std::exp(-x));
          };
          const double x =
              static_cast<double>(p.exact(i / s.n, i % s.n)) * p.scale_[static_cast<size_t>(i % s.n)] + 0.25;
          const double want = before ? f(x) - 0.5 : f(x - 0.5);
          ASSERT_NEAR(reinterpret_cast<const float*>(c.data())[i], want, 1e-5 * (1 + std::abs(x)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::cpu
