// The device's kernels, run thread by thread on the host, against plain loops in double and the CPU's own
// rules.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/dense/decode_kernels.h"
#include "backend/cuda/elementwise/flat_kernels.h"
#include "backend/cuda/device/host_grid.h"
#include "backend/cuda/index/move_kernels.h"
#include "backend/cuda/norm/row_kernels.h"
#include "base/rng.h"

namespace trireme::cuda {
namespace {

/// 16-byte aligned storage with a guard of `T(-77)` behind it, as arenas are aligned.
template <class T>
class Memory {
 public:
  explicit Memory(int64_t n) : n_(n), packs_(static_cast<size_t>(n / kPack<T> + 2)) {
    for (int64_t i = 0; i < static_cast<int64_t>(packs_.size()) * kPack<T>; ++i) data()[i] = T(-77.0f);
  }
  T* data() { return packs_[0].item; }
  const T* data() const { return packs_[0].item; }
  T& operator[](int64_t i) { return data()[i]; }
  T operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return n_; }
  bool guard_holds() const {
    for (int64_t i = n_; i < static_cast<int64_t>(packs_.size()) * kPack<T>; ++i) {
      if (static_cast<float>(data()[i]) != -77.0f) return false;
    }
    return true;
  }

 private:
  int64_t n_;
  std::vector<Pack<T>> packs_;
};

template <class T>
Memory<T> normal(int64_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, scale);
  Memory<T> out(n);
  for (int64_t i = 0; i < n; ++i) out[i] = T(draw(random));
  return out;
}

const Launch kRows{.blocks = 3, .threads = 128, .shared_bytes = kReduceScratchBytes};

template <class T>
double tolerance() {
  return std::is_same_v<T, float> ? 3e-6 : std::is_same_v<T, Half> ? 2e-3 : 2e-2;
}

template <class T>
class Rows : public testing::Test {};
using Types = testing::Types<float, Half, BFloat16>;
TYPED_TEST_SUITE(Rows, Types);

TYPED_TEST(Rows, SoftmaxOfAlignedAndOddRows) {
  using T = TypeParam;
  for (const int64_t n : {1, 7, 64, 333, 1024, 2048}) {
    Memory<T> x = normal<T>(5 * n, 1, 4), y(5 * n);
    for (int64_t i = 0; i < n; ++i) x[2 * n + i] = T(-INFINITY);
    run_on_host(kRows, Softmax<T>{x.data(), y.data(), 5, n});
    for (int64_t row = 0; row < 5; ++row) {
      double most = -INFINITY, total = 0;
      for (int64_t i = 0; i < n; ++i) most = std::max(most, double{x[row * n + i]});
      for (int64_t i = 0; i < n; ++i) total += std::exp(x[row * n + i] - most);
      for (int64_t i = 0; i < n; ++i) {
        const double want = row == 2 ? 0 : std::exp(x[row * n + i] - most) / total;
        ASSERT_NEAR(y[row * n + i], want, tolerance<T>()) << n << " " << row << " " << i;
      }
    }
    EXPECT_TRUE(y.guard_holds());
  }
}

struct TwiceAndOne {
  float operator()(float a) const { return 2 * a + 1; }
  float operator()(float a, float b) const { return a * b; }
};

TEST(Flat, MapsTouchEveryElementOnce) {
  for (const int64_t n : {1, 3, 8, 1000, 4097}) {
    const Memory<BFloat16> x = normal<BFloat16>(n, 9), z = normal<BFloat16>(n, 10);
    Memory<BFloat16> y(n), w(n);
    run_on_host({.blocks = 3, .threads = 64}, MapUnary<BFloat16, TwiceAndOne>{x.data(), y.data(), n, {}});
    run_on_host({.blocks = 2, .threads = 32},
                MapBinary<BFloat16, TwiceAndOne>{x.data(), z.data(), w.data(), n, {}});
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(static_cast<float>(y[i]), static_cast<float>(BFloat16(2 * float{x[i]} + 1)));
      ASSERT_EQ(static_cast<float>(w[i]), static_cast<float>(BFloat16(float{x[i]} * float{z[i]})));
    }
    EXPECT_TRUE(y.guard_holds() && w.guard_holds());
  }
}

TEST(Flat, DropoutDrawsTheMaskOfItsCounters) {
  constexpr uint64_t kSeed = 77, kStream = uint64_t{1} << 63 | 5;
  constexpr uint32_t kThreshold = 1u << 30;
  for (const uint64_t first : {0u, 64u, 100u}) {
    for (const int64_t n : {1, 63, 500}) {
      const Memory<float> x = normal<float>(n, 11);
      Memory<float> y(n);
      run_on_host({.blocks = 2, .threads = 32},
                  Dropout<float>{x.data(), y.data(), n, first, kSeed, kStream, kThreshold, 2.0f});
      for (int64_t i = 0; i < n; ++i) {
        const uint64_t e = first + static_cast<uint64_t>(i);
        const uint32_t word = base::philox_block(kSeed, kStream, e / 64 * 16 + e % 16)[e % 64 / 16];
        ASSERT_EQ(y[i], word >= kThreshold ? 2 * x[i] : 0.0f) << first << " " << i;
      }
      EXPECT_TRUE(y.guard_holds());
    }
  }
}

TEST(Flat, AdamIsTheRuleAndCanBeSkipped) {
  constexpr int64_t kN = 1003;
  const Memory<float> grad = normal<float>(kN, 12);
  const AdamNumbers k{0.5f, 0.1f, 0.9f, 0.1f, 0.99f, 0.01f, 1e-8f, 0.002f, 3.0f, 0.999f};
  for (const uint8_t skip : {0, 1}) {
    Memory<float> p = normal<float>(kN, 13), m = normal<float>(kN, 14), v = normal<float>(kN, 15);
    for (int64_t i = 0; i < kN; ++i) v[i] = std::abs(v[i]);
    const Memory<float> p0 = p, m0 = m, v0 = v;
    run_on_host({.blocks = 2, .threads = 64},
                AdamStep{p.data(), m.data(), v.data(), grad.data(), &skip, kN, k});
    for (int64_t i = 0; i < kN; ++i) {
      if (skip != 0) {
        ASSERT_EQ(p[i], p0[i]);
        continue;
      }
      const double g = double{grad[i]} * k.grad_scale + double{k.l2} * p0[i];
      const double first = double{k.beta1} * m0[i] + double{k.take1} * g;
      const double second = double{k.beta2} * v0[i] + double{k.take2} * g * g;
      ASSERT_NEAR(p[i], p0[i] * double{k.decay} - k.rate * first / (std::sqrt(second) * k.root + k.eps),
                  1e-6);
      ASSERT_NEAR(m[i], first, 1e-6);
      ASSERT_NEAR(v[i], second, 1e-6);
    }
    EXPECT_TRUE(p.guard_holds() && m.guard_holds() && v.guard_holds());
  }
}

TEST(Move, TransposesAnyShape) {
  for (const auto& [batch, rows, columns] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {2, 33, 64}, {1, 100, 7}, {3, 32, 32}}) {
    const Memory<Half> x = normal<Half>(batch * rows * columns, 16);
    Memory<Half> y(batch * rows * columns);
    run_on_host({.blocks = 3, .threads = 256, .shared_bytes = Transpose<Half>::kSharedBytes},
                Transpose<Half>{x.data(), y.data(), batch, rows, columns});
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c)
          ASSERT_EQ(y[(b * columns + c) * rows + r].bits, x[(b * rows + r) * columns + c].bits);
      }
    }
    EXPECT_TRUE(y.guard_holds());
  }
}

TEST(Move, RowsByIndexAndBack) {
  constexpr int64_t kVocabulary = 10, kN = 40;
  const Memory<float> table = normal<float>(kVocabulary * kN, 17);
  const std::vector<int64_t> index{3, 9, 3, 0, 5};
  Memory<float> y(5 * kN), part(5 * kN), back(kVocabulary * kN);
  run_on_host({.blocks = 2, .threads = 32},
              GatherRows<float>{table.data(), index.data(), y.data(), 5, kN, 0, kVocabulary});
  run_on_host({.blocks = 2, .threads = 32},
              GatherRows<float>{table.data() + 4 * kN, index.data(), part.data(), 5, kN, 4, 6});
  for (int64_t row = 0; row < 5; ++row) {
    const int64_t from = index[static_cast<size_t>(row)];
    for (int64_t i = 0; i < kN; ++i) {
      ASSERT_EQ(y[row * kN + i], table[from * kN + i]);
      ASSERT_EQ(part[row * kN + i], from >= 4 ? table[from * kN + i] : 0.0f);
    }
  }
  std::vector<int64_t> order{0, 1, 2, 3, 4}, begin(kVocabulary + 1);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return index[static_cast<size_t>(a)] < index[static_cast<size_t>(b)];
  });
  for (const int64_t i : index) ++begin[static_cast<size_t>(i) + 1];
  for (size_t v = 0; v < kVocabulary; ++v) begin[v + 1] += begin[v];
  run_on_host({.blocks = 3, .threads = 32},
              GatherRowsGrad<float>{y.data(), order.data(), begin.data(), back.data(), kVocabulary, kN});
  for (int64_t i = 0; i < kN; ++i) {
    EXPECT_EQ(back[3 * kN + i], y[i] + y[2 * kN + i]);
    EXPECT_EQ(back[9 * kN + i], y[kN + i]);
    EXPECT_EQ(back[1 * kN + i], 0.0f);
  }
}

template <int kBits>
void expect_quantized_rows() {
  constexpr int64_t kRowCount = 7, kK = 2048, kGroup = 128;
  std::mt19937 random(18);
  Memory<BFloat16> x = normal<BFloat16>(3 * kK, 19);
  std::vector<Pack<uint8_t>> bytes(static_cast<size_t>(kRowCount * kK * kBits / 8 / 16));
  uint8_t* w = bytes[0].item;
  for (size_t i = 0; i < bytes.size() * 16; ++i) w[i] = static_cast<uint8_t>(random());
  const Memory<float> scale = normal<float>(kRowCount * kK / kGroup, 20, 0.01f);
  Memory<BFloat16> y(3 * kRowCount);
  run_on_host({.blocks = 2, .threads = 64},
              QuantizedRows<BFloat16, kBits, 4>{
                  x.data(), w, {scale.data(), nullptr, kK, kGroup}, nullptr, y.data(), kRowCount, kK, 3});
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t row = 0; row < kRowCount; ++row) {
      double want = 0;
      for (int64_t i = 0; i < kK; ++i) {
        const int64_t at = row * kK + i;
        const int q = kBits == 8 ? static_cast<int8_t>(w[at])
                                 : (w[at / 32 * 16 + at % 16] >> (at % 32 / 16 * 4) & 15) - 8;
        want += double{x[b * kK + i]} * q * scale[row * (kK / kGroup) + i / kGroup];
      }
      ASSERT_NEAR(y[b * kRowCount + row], want, 0.01 * std::abs(want) + 0.05) << b << " " << row;
    }
  }
  EXPECT_TRUE(y.guard_holds());
}

TEST(Decode, WeightsOfEightBits) { expect_quantized_rows<8>(); }
TEST(Decode, WeightsOfFourBits) { expect_quantized_rows<4>(); }

TEST(HostGrid, FindsBarriersThatNotAllReach) {
  const auto half_waits = [](const auto& lane) {
    if (lane.thread() < 32) lane.sync();
  };
  EXPECT_THROW(run_on_host({.blocks = 1, .threads = 64}, half_waits), base::Error);
  EXPECT_THROW(run_on_host({.blocks = 1, .threads = 40}, [](const auto&) {}), base::Error);
  // A missing barrier: a thread reads what its neighbour may not have written yet. Turns change direction, so
  // one of the two orders shows it.
  std::vector<int> seen(64, -1);
  run_on_host({.blocks = 1, .threads = 64, .shared_bytes = 512}, [&](const auto& lane) {
    int* memory = lane.template shared<int>();
    lane.sync();
    memory[lane.thread()] = lane.thread();
    seen[static_cast<size_t>(lane.thread())] = memory[63 - lane.thread()];
  });
  bool stale = false;
  for (int t = 0; t < 64; ++t) stale = stale || seen[static_cast<size_t>(t)] != 63 - t;
  EXPECT_TRUE(stale);
}

}  // namespace
}  // namespace trireme::cuda
