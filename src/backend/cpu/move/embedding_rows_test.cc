// Row gathers, embedding sums and their gradient against plain indexing.
#include "backend/cpu/move/embedding_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace trireme::cpu {
namespace {

std::vector<float> ramp(int64_t n, float start) {
  std::vector<float> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), start);
  return v;
}

TEST(Embedding, GathersRowsOfAnySize) {
  base::ThreadPool pool(3);
  for (int64_t width : {1, 2, 3, 17, 300}) {
    const std::vector<float> table = ramp(2 * 7 * width, 5);
    const std::vector<int64_t> index = {0, 6, 3, -1, 3, -7};
    const std::vector<int32_t> narrow(index.begin(), index.end());
    std::vector<float> y(static_cast<size_t>(2 * 6 * width)), z(y.size());
    gather_rows({table.data(), y.data(), 2, 7, width * 4, 6}, index.data(), pool);
    gather_rows({table.data(), z.data(), 2, 7, width * 4, 6}, narrow.data(), pool);
    for (int64_t o = 0; o < 2; ++o) {
      for (int64_t i = 0; i < 6; ++i) {
        const int64_t row = (index[static_cast<size_t>(i)] + 7) % 7;
        for (int64_t c = 0; c < width; ++c) {
          const size_t at = static_cast<size_t>((o * 6 + i) * width + c);
          ASSERT_EQ(y[at], table[static_cast<size_t>((o * 7 + row) * width + c)]);
          ASSERT_EQ(z[at], y[at]);
        }
      }
    }
  }
}

TEST(Embedding, RefusesIndicesOutsideBeforeWriting) {
  base::ThreadPool pool(2);
  const std::vector<float> table = ramp(10, 0);
  float y[4] = {-1, -1, -1, -1};
  for (int64_t bad : {5, -6}) {
    const int64_t index[] = {0, bad};
    EXPECT_THROW(gather_rows({table.data(), y, 1, 5, 8, 2}, index, pool), base::Error);
    EXPECT_EQ(y[0], -1.0f);
  }
}

TEST(Embedding, SumsTables) {
  base::ThreadPool pool(2);
  const int64_t width = 37, tokens = 90;
  const std::vector<float> word = ramp(50 * width, 1), position = ramp(90 * width, 2),
                           type = ramp(2 * width, 3);
  std::vector<int64_t> a(90), b(90), c(90);
  for (size_t i = 0; i < 90; ++i)
    a[i] = static_cast<int64_t>(i * 7 % 50), b[i] = static_cast<int64_t>(i),
    c[i] = static_cast<int64_t>(i % 2);
  for (int count = 1; count <= 3; ++count) {
    std::vector<float> y(static_cast<size_t>(tokens * width));
    embedding_sum({{word.data(), position.data(), type.data()},
                   {a.data(), b.data(), c.data()},
                   {50, 90, 2},
                   count,
                   y.data(),
                   tokens,
                   width},
                  pool);
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t t = i / 37, col = i % 37;
      float want = word[static_cast<size_t>(a[t]) * 37 + col];
      if (count > 1) want += position[t * 37 + col];
      if (count > 2) want += type[static_cast<size_t>(c[t]) * 37 + col];
      ASSERT_EQ(y[i], want);
    }
  }
}

TEST(Embedding, ScatterAddIsTheSameForEveryThreadCount) {
  base::ThreadPool one(1), four(4);
  const int64_t width = 100, n = 400;
  std::vector<float> dy(static_cast<size_t>(n * width));
  for (size_t i = 0; i < dy.size(); ++i) dy[i] = 1.0f / static_cast<float>(i % 97 + 1);
  std::vector<int64_t> index(static_cast<size_t>(n));
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int64_t>(i * i % 11) - 5;
  std::vector<float> a(static_cast<size_t>(11 * width)), b(a.size());
  scatter_add_rows({dy.data(), index.data(), a.data(), n, 11, width}, one);
  scatter_add_rows({dy.data(), index.data(), b.data(), n, 11, width}, four);
  EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * 4));
  std::vector<double> want(a.size());
  for (size_t i = 0; i < index.size(); ++i) {
    const size_t row = static_cast<size_t>((index[i] + 11) % 11);
    for (size_t c = 0; c < 100; ++c) want[row * 100 + c] += dy[i * 100 + c];
  }
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(a[i], want[i], 1e-4);
}

}  // namespace
}  // namespace trireme::cpu
