// Copies, permutations, concatenation and padding against plain index arithmetic.
#include "backend/cpu/move/transpose_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace trireme::cpu {
namespace {

using Ints = std::vector<int64_t>;

Ints dense_strides(const Ints& shape) {
  Ints s(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) s[i - 1] = s[i] * shape[i];
  return s;
}

int64_t count(const Ints& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Ints index_of(int64_t t, const Ints& shape) {
  Ints index(shape.size());
  for (size_t i = shape.size(); i-- > 0;) index[i] = t % shape[i], t /= shape[i];
  return index;
}

int64_t dot(const Ints& a, const Ints& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), int64_t{0});
}

std::vector<uint8_t> noise(int64_t bytes) {
  std::vector<uint8_t> v(static_cast<size_t>(bytes));
  uint32_t seed = 7;
  for (uint8_t& b : v) b = static_cast<uint8_t>((seed = seed * 1664525u + 1013904223u) >> 24);
  return v;
}

void check_permute(const Ints& shape, const std::vector<int>& order, int bytes, base::ThreadPool& pool) {
  const int64_t n = count(shape);
  const std::vector<uint8_t> x = noise(n * bytes);
  std::vector<uint8_t> y(x.size() + 1, 0xEE);
  permute({x.data(), y.data(), shape, order, bytes}, pool);
  Ints out_shape;
  for (int o : order) out_shape.push_back(shape[static_cast<size_t>(o)]);
  const Ints strides = dense_strides(shape);
  for (int64_t t = 0; t < n; ++t) {
    const Ints to = index_of(t, out_shape);
    int64_t from = 0;
    for (size_t i = 0; i < order.size(); ++i) from += to[i] * strides[static_cast<size_t>(order[i])];
    ASSERT_EQ(0, std::memcmp(y.data() + t * bytes, x.data() + from * bytes, static_cast<size_t>(bytes)))
        << "element " << t << " bytes " << bytes;
  }
  ASSERT_EQ(y.back(), 0xEE);
}

TEST(Transpose, EveryPermutationOfSmallTensors) {
  base::ThreadPool pool(3);
  for (int bytes : {1, 2, 4, 8, 16}) {
    std::vector<int> order = {0, 1, 2, 3};
    do {
      for (const Ints& shape :
           {Ints{2, 3, 4, 5}, Ints{1, 17, 1, 33}, Ints{3, 1, 70, 2}, Ints{2, 16, 16, 4}}) {
        check_permute(shape, order, bytes, pool);
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(Transpose, MatricesOfManySizes) {
  base::ThreadPool pool(3);
  for (int bytes : {1, 2, 4, 8, 16}) {
    for (int64_t rows : {0, 1, 3, 16, 31, 64, 130, 300}) {
      for (int64_t cols : {1, 2, 15, 64, 65, 257, 300}) check_permute({rows, cols}, {1, 0}, bytes, pool);
    }
  }
  check_permute({2, 3, 4, 5, 6, 7}, {5, 3, 1, 0, 2, 4}, 4, pool);
  EXPECT_THROW(check_permute({2, 3}, {0, 0}, 4, pool), base::Error);
  EXPECT_THROW(check_permute({2, 3}, {1, 0}, 3, pool), base::Error);
}

TEST(Copy, SlicesBroadcastsAndReversals) {
  base::ThreadPool pool(2);
  const std::vector<uint8_t> x = noise(20 * 30 * 40 * 4);
  struct Case {
    Ints shape, xs, ys;
    int64_t x_first;
  };
  const Case cases[] = {
      {{5, 6, 7}, {1200, 40, 1}, {42, 7, 1}, 3},    // slice
      {{5, 6, 7}, {2400, 80, 3}, {42, 7, 1}, 0},    // steps
      {{5, 6, 7}, {1200, 40, -1}, {42, 7, 1}, 30},  // reversed
      {{5, 6, 7}, {0, 40, 0}, {42, 7, 1}, 11},      // broadcast
      {{5, 6, 7}, {1, 1200, 40}, {42, 7, 1}, 2},    // transposed slice
      {{4, 8, 9}, {72, 9, 1}, {200, 20, 2}, 0},     // into a strided result
      {{300}, {0}, {1}, 5},
      {{}, {}, {}, 9},
  };
  for (const Case& c : cases) {
    std::vector<uint32_t> y(4 * 8 * 9 * 20, 0xEEEEEEEE), want = y;
    const uint32_t* from = reinterpret_cast<const uint32_t*>(x.data()) + c.x_first;
    copy_strided({from, y.data(), c.shape, c.xs, c.ys, 4}, pool);
    for (int64_t t = 0; t < count(c.shape); ++t) {
      const Ints i = index_of(t, c.shape);
      want[static_cast<size_t>(dot(i, c.ys))] = from[dot(i, c.xs)];
    }
    ASSERT_EQ(y, want);
  }
}

// Runs of 1 to 80 bytes, lines of every step, several pieces and team sizes.
TEST(Copy, ShortRunsAndSteps) {
  const std::vector<uint8_t> x = noise(300000);
  for (const int threads : {1, 3}) {
    base::ThreadPool pool(threads);
    for (int64_t run = 1; run <= 80; ++run) {
      for (const int64_t step : {-2, -1, 0, 1, 2, 3, 4, 7}) {
        const Ints shape = {5, 31, run}, xs = {3 * run, 900, step}, ys = {31 * run, run, 1};
        std::vector<uint8_t> y(static_cast<size_t>(count(shape)) + 1, 0xEE);
        const int64_t base = 1000;
        copy_strided({x.data() + base, y.data(), shape, xs, ys, 1}, pool);
        for (int64_t t = 0; t < count(shape); ++t) {
          const Ints at = index_of(t, shape);
          ASSERT_EQ(y[static_cast<size_t>(t)], x[static_cast<size_t>(base + dot(at, xs))])
              << run << " " << step;
        }
        ASSERT_EQ(y.back(), 0xEE);
      }
    }
  }
}

int64_t padded_source(PadMode mode, int64_t k, int64_t n) {
  if (k >= 0 && k < n) return k;
  if (mode == PadMode::edge) return k < 0 ? 0 : n - 1;
  if (mode == PadMode::wrap) return k < 0 ? padded_source(mode, k + n, n) : padded_source(mode, k - n, n);
  if (n == 1) return 0;
  return padded_source(mode, k < 0 ? -k : 2 * (n - 1) - k, n);
}

TEST(Pad, EveryModeAndElementSize) {
  base::ThreadPool pool(2);
  const Ints shape = {3, 1, 5};
  const std::pair<Ints, Ints> amounts[] = {
      {{0, 0, 0}, {0, 0, 0}}, {{2, 1, 7}, {1, 2, 9}}, {{-1, 0, -2}, {0, 3, 1}}};
  for (PadMode mode : {PadMode::constant, PadMode::edge, PadMode::reflect, PadMode::wrap}) {
    for (const auto& [before, after] : amounts) {
      for (int bytes : {1, 2, 4, 8}) {
        const std::vector<uint8_t> x = noise(count(shape) * bytes), value(8, 0x5A);
        Ints out = shape;
        for (size_t i = 0; i < 3; ++i) out[i] += before[i] + after[i];
        std::vector<uint8_t> y(static_cast<size_t>(count(out) * bytes));
        pad({x.data(), y.data(), shape, before, after, mode, value.data(), bytes}, pool);
        for (int64_t t = 0; t < count(out); ++t) {
          Ints i = index_of(t, out);
          bool inside = true;
          for (size_t a = 0; a < 3; ++a) {
            i[a] -= before[a];
            if (mode == PadMode::constant)
              inside &= i[a] >= 0 && i[a] < shape[a];
            else
              i[a] = padded_source(mode, i[a], shape[a]);
          }
          const uint8_t* want = inside ? x.data() + dot(i, dense_strides(shape)) * bytes : value.data();
          ASSERT_EQ(0, std::memcmp(y.data() + t * bytes, want, static_cast<size_t>(bytes)))
              << "element " << t;
        }
      }
    }
  }
  EXPECT_THROW(pad({nullptr, nullptr, shape, Ints{-4, 0, 0}, Ints{0, 0, 0}}, pool), base::Error);
}

}  // namespace
}  // namespace trireme::cpu
