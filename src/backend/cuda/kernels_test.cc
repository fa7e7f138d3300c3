// The device's kernels, run thread by thread on the host, against plain loops in double and the CPU's
// functions.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/conv/transpose_kernels.h"
#include "backend/cuda/device/host_grid.h"
#include "backend/cuda/norm/softmax_kernels.h"
#include "backend/cuda/quant/quantized_rows_kernels.h"

namespace trireme::cuda {
namespace {

/// 16-byte aligned storage, as in arenas, with a guard value `T(-77)` after it.
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
Memory<T> normal_memory(int64_t n, uint32_t seed, float scale = 1) {
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
    Memory<T> x = normal_memory<T>(5 * n, 1, 4), y(5 * n);
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

TYPED_TEST(Rows, SoftmaxInRegistersOfAlignedAndOddRows) {
  using T = TypeParam;
  for (const int64_t n : {1, 7, 64, 333, 1032, 2048}) {
    Memory<T> x = normal_memory<T>(5 * n, 1, 4), y(5 * n);
    for (int64_t i = 0; i < n; ++i) x[2 * n + i] = T(-INFINITY);
    run_on_host({.blocks = 3, .threads = kHeldOne.threads_of(n), .shared_bytes = kHeldSharedBytes},
                HeldSoftmax<T>{{x.data(), y.data(), 5, n}});
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

TEST(Move, TransposesAnyShape) {
  for (const auto& [batch, rows, columns] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {2, 33, 64}, {1, 100, 7}, {3, 64, 64}, {2, 72, 136}, {1, 8, 200}}) {
    const Memory<Half> x = normal_memory<Half>(batch * rows * columns, 16);
    Memory<Half> y(batch * rows * columns);
    using Tile = TurnedTile<Half>;
    run_on_host(
        {.blocks = 3, .threads = Tile::kThreads, .shared_bytes = Tile::kSharedBytes},
        Transpose<Half>{x.data(),
                        y.data(),
                        batch,
                        rows,
                        columns,
                        {is_whole_packs<Half>(x.data(), {columns}), is_whole_packs<Half>(y.data(), {rows})}});
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c)
          ASSERT_EQ(y[(b * columns + c) * rows + r].bits, x[(b * rows + r) * columns + c].bits);
      }
    }
    EXPECT_TRUE(y.guard_holds());
  }
}

template <int kBits>
void expect_quantized_rows() {
  constexpr int64_t kRowCount = 7, kK = 2048, kGroup = 128;
  std::mt19937 random(18);
  Memory<BFloat16> x = normal_memory<BFloat16>(3 * kK, 19);
  std::vector<Pack<uint8_t>> bytes(static_cast<size_t>(kRowCount * kK * kBits / 8 / 16));
  uint8_t* w = bytes[0].item;
  for (size_t i = 0; i < bytes.size() * 16; ++i) w[i] = static_cast<uint8_t>(random());
  const Memory<float> scale = normal_memory<float>(kRowCount * kK / kGroup, 20, 0.01f);
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
  // Without a barrier, a thread reads what its neighbour may not have written yet. The order of threads
  // reverses at every meeting, so one of the two orders shows the error.
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
