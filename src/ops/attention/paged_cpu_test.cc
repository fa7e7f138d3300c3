// paged_attention and kv_append against naive loops in double, and the guarantee that a row's result depends
// on its own sequence only.
#include <cstring>
#include <limits>
#include <tuple>

#include "backend/cpu/simd/simd_level.h"
#include "tests/paged_cases.h"

namespace trireme::ops {
namespace {

using namespace paged_cases;

std::vector<double> naive_paged(const Case& c, const Operands& o) {
  const auto q = o.q.to_doubles(), keys = plain_pages(o.keys).to_doubles(),
             values = plain_pages(o.values).to_doubles();
  const auto table = o.table.to_ints(), starts = o.starts.to_ints();
  const int64_t most = o.table.dims()[1], group = c.heads / c.kv_heads;
  std::vector<double> y(q.size(), 0);
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    for (int64_t i = 0; i < c.fresh[s]; ++i) {
      const int64_t seen = c.lengths[s] - c.fresh[s] + i + 1, row = starts[s] + i;
      for (int64_t h = 0; h < c.heads; ++h) {
        const auto at = [&](int64_t t) {
          const int64_t page = table[s * static_cast<size_t>(most) + static_cast<size_t>(t / c.page_tokens)];
          return static_cast<size_t>(((page * c.kv_heads + h / group) * c.page_tokens + t % c.page_tokens) *
                                     c.dim);
        };
        const auto first = static_cast<size_t>((row * c.heads + h) * c.dim);
        std::vector<double> p;
        double sum = c.has_sinks ? std::exp(o.sinks.to_doubles()[static_cast<size_t>(h)]) : 0;
        const int64_t begin = c.left < 0 ? 0 : std::max<int64_t>(0, seen - 1 - c.left);
        for (int64_t t = begin; t < seen; ++t) {
          double dot = 0;
          for (size_t d = 0; d < static_cast<size_t>(c.dim); ++d) dot += q[first + d] * keys[at(t) + d];
          double score = dot / std::sqrt(static_cast<double>(c.dim));
          if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
          p.push_back(std::exp(score));
          sum += p.back();
        }
        for (int64_t t = begin; t < seen; ++t) {
          for (size_t d = 0; d < static_cast<size_t>(c.dim); ++d)
            y[first + d] += p[static_cast<size_t>(t - begin)] / sum * values[at(t) + d];
        }
      }
    }
  }
  return y;
}

std::vector<int> numbers(size_t n) {
  std::vector<int> list;
  for (size_t i = 0; i < n; ++i) list.push_back(static_cast<int>(i));
  return list;
}

Tensor run(const Case& c, const std::vector<int>& seeds, int threads) {
  const auto results =
      tests::run_kernels("paged_attention", c.attrs(), make(c, seeds).list(), 1, {}, threads);
  EXPECT_EQ(results.size(), 1u);
  return results.at(0).out[0];
}

void expect_naive(const std::vector<Case>& cases, const std::string& level) {
  for (const Case& c : cases) {
    const Operands o = make(c, numbers(c.lengths.size()));
    const double tolerance = c.type == DType::f32 ? 2e-5 : 1e-2;
    for (int threads : {1, 3}) {
      const Tensor y = run(c, numbers(c.lengths.size()), threads);
      tests::expect_close(y, naive_paged(c, o), tolerance, tolerance,
                          base::concat(level, ", dim ", c.dim, " threads ", threads));
    }
  }
}

TEST(PagedAttention, SinksTakeTheirShare) {
  std::vector<Case> cases{{4, 2, 64, 16, {5, 40, 1}, {1, 1, 1}},
                          {4, 4, 8, 4, {9, 3}, {9, 3}},
                          {8, 2, 16, 16, {700, 30}, {1, 2}},  // keys in several parts that are joined
                          {4, 1, 40, 8, {300}, {300}}};
  for (Case& c : cases) c.has_sinks = true;
  cases[1].left = 2;
  for (const cpu::SimdLevel& level : cpu::simd_levels()) {
    cpu::simd_force(level);
    expect_naive(cases, level.name);
  }
  cpu::simd_unforce();
}

TEST(PagedAttention, MatchesNaiveLoops) {
  const std::vector<Case> cases{
      {2, 2, 16, 16, {1}, {1}},
      {4, 2, 64, 16, {5, 40, 1}, {1, 1, 1}},
      {4, 4, 8, 4, {9, 3}, {9, 3}},
      {8, 2, 24, 7, {300, 17, 600}, {1, 17, 40}, DType::f32, DType::f32, 3},
      {6, 1, 128, 16, {513, 255}, {2, 5}, DType::bf16},
      {2, 1, 80, 32, {70, 256}, {70, 1}, DType::f16, DType::f16},
      {3, 3, 5, 1, {4, 2}, {2, 1}, DType::bf16, DType::bf16, 1},
      {1, 1, 256, 256, {257}, {257}},
      {2, 1, 32, 16, {0, 20, 0}, {0, 4, 0}, DType::f32, DType::f32, 2},
      {4, 2, 16, 16, {300, 700, 5}, {1, 3, 5}, DType::f32, DType::f32, 0, 0},
      {4, 2, 16, 16, {300, 700, 5}, {100, 3, 5}, DType::f32, DType::f32, 1, 41},
      {2, 2, 24, 7, {600, 520}, {600, 2}, DType::f32, DType::f32, 0, 256, 0.5},
      {4, 1, 64, 16, {530, 40}, {1, 40}, DType::bf16, DType::f32, 0, -1, 1.5},
      {4, 2, 64, 16, {5, 40, 1}, {1, 1, 1}, DType::i8},
      {8, 2, 24, 7, {300, 17, 600}, {1, 17, 40}, DType::i8, DType::f32, 3},
      {6, 1, 128, 16, {513, 255}, {2, 5}, DType::i8, DType::bf16, 0, 99},
      {3, 3, 5, 1, {4, 2}, {2, 1}, DType::f8e4m3fn, DType::f32, 1},
      {8, 2, 64, 16, {530, 40}, {1, 40}, DType::f8e4m3fn, DType::f32, 0, -1, 1.5},
      {2, 1, 80, 32, {70, 256}, {70, 1}, DType::f8e4m3fn, DType::f16},
  };
  for (const cpu::SimdLevel& level : cpu::simd_levels()) {
    cpu::simd_force(level);
    expect_naive(cases, level.name);
  }
  cpu::simd_unforce();
}

TEST(PagedAttention, SeesInfinitiesNowhere) {  // a score of -inf hides its key; if all are -inf, y is 0
  const Case c{1, 1, 16, 16, {3}, {1}};
  Operands o = make(c, {0});
  Tensor q = o.q.clone();
  std::fill_n(q.mutable_data<float>().data(), q.elements(), -std::numeric_limits<float>::infinity());
  Tensor keys = o.keys.clone();
  for (float& v : keys.mutable_data<float>()) v = 1.0f;
  const auto got =
      tests::run_kernels("paged_attention", {}, {q, keys, o.values, o.table, o.lengths, o.starts});
  for (double v : got.at(0).out[0].to_doubles()) EXPECT_EQ(v, 0);
}

/// Rows [begin, begin + n) of y.
std::vector<float> rows_of(const Tensor& y, int64_t begin, int64_t n) {
  const int64_t width = y.dims().back();
  const auto all =
      y.data<float>().subspan(static_cast<size_t>(begin * width), static_cast<size_t>(n * width));
  return {all.begin(), all.end()};
}

TEST(PagedAttention, RowsDoNotDependOnMatesChunksOrThreads) {
  for (const auto& [pages, left, cap] :
       {std::tuple{DType::f32, -1, 0.0}, std::tuple{DType::bf16, -1, 0.0}, std::tuple{DType::i8, -1, 0.0},
        std::tuple{DType::f32, 299, 0.0}, std::tuple{DType::f32, 30, 2.0}}) {
    const Case alone{8, 2, 64, 16, {700}, {700}, pages, DType::f32, 0, left, cap};
    const Tensor whole = run(alone, {5}, 1);
    for (const int chunk : {1, 3, 64, 256, 333}) {
      for (int done = 0; done < 700; done += std::max(chunk, 61)) {
        const int n = std::min(chunk, 700 - done);
        const Case part{8, 2, 64, 16, {33, done + n, 512}, {33, n, 1}, pages, DType::f32, 0, left, cap};
        const Tensor y = run(part, {1, 5, 2}, 1 + done % 4);
        ASSERT_EQ(rows_of(y, 33, n), rows_of(whole, done, n)) << "chunk " << chunk << " at " << done;
      }
    }
  }
}

TEST(PagedAttention, ReportsBadTables) {
  const Case c{2, 1, 16, 16, {20, 5}, {2, 5}};
  const Operands good = make(c, {0, 1});
  const auto fails = [&](const Operands& o) {
    base::ThreadPool pool(1);
    try {
      evaluate(table().need("paged_attention"), {}, o.list(), 1, pool);
    } catch (const base::Error& e) {
      return e.code() == base::ErrorCode::invalid_argument;
    }
    return false;
  };
  EXPECT_FALSE(fails(good));
  Operands o = good;
  o.table = ints({2, 2}, {0, 99, 1, 1});
  EXPECT_TRUE(fails(o));
  o = good;
  o.lengths = ints({2}, {33, 5});
  EXPECT_TRUE(fails(o));
  o = good;
  o.lengths = ints({2}, {1, 5});
  EXPECT_TRUE(fails(o));
  o = good;
  o.starts = ints({3}, {0, 5, 2});
  EXPECT_TRUE(fails(o));
}

TEST(KvAppend, WritesSlotsAndNothingElse) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::i8, DType::f8e4m3fn}) {
    const Tensor k = random_tensor({1, 3, 10}, 1), v = random_tensor({1, 3, 10}, 2);
    const Tensor keys = pages_as(random_tensor({4, 2, 3, 5}, 3), type),
                 values = pages_as(random_tensor({4, 2, 3, 5}, 4), type);
    const auto got = tests::run_kernels("kv_append", {}, {k, v, keys, values, ints({3}, {7, -1, 2})}, 2);
    ASSERT_EQ(got.size(), 1u);
    for (size_t i : {0, 1}) {
      std::vector<double> want = plain_pages(i == 0 ? keys : values).to_doubles();
      const Tensor rows = (i == 0 ? k : v).reshaped({3, 2, 5});
      const auto fresh = plain_pages(pages_as(rows, type)).to_doubles();
      for (const auto& [token, slot] : {std::pair<size_t, size_t>{0, 7}, {2, 2}}) {
        for (size_t h = 0; h < 2; ++h) {
          for (size_t d = 0; d < 5; ++d)
            want[((slot / 3 * 2 + h) * 3 + slot % 3) * 5 + d] = fresh[token * 10 + h * 5 + d];
        }
      }
      EXPECT_EQ(plain_pages(got[0].out[i]).to_doubles(), want);
    }
  }
}

TEST(KvAppend, CodesAreTheNearest) {
  // Magnitudes over all codes of a row whose largest value makes the scale 1, so that halves are met exactly.
  std::vector<float> row;
  for (int i = 0; i < 254; ++i) row.push_back(static_cast<float>(i % 2 == 0 ? i : -i) / 4.0f + 0.25f);
  for (const DType type : {DType::i8, DType::f8e4m3fn}) {
    const float most = type == DType::i8 ? 127.0f : 448.0f;
    std::vector<float> x = row;
    x.insert(x.end(), {most, 0.001f});
    const Tensor k = Tensor::from<float>({1, 1, 256}, std::span<const float>(x));
    const Tensor pages = coded(Tensor::zeros(DType::f32, {1, 1, 1, 256}), type);
    const auto got = tests::run_kernels("kv_append", {}, {k, k, pages, pages, ints({1}, {0})}, 2);
    const auto* codes = reinterpret_cast<const uint8_t*>(got.at(0).out[0].raw());
    for (size_t i = 0; i < x.size(); ++i) {
      const uint8_t want = type == DType::i8 ? static_cast<uint8_t>(std::lrint(x[i]))
                                             : tensor::encode_small_float(type, x[i], true);
      EXPECT_EQ(codes[i], want) << name_of(type) << " of " << x[i];
    }
  }
}

TEST(KvAppend, RowsThatAreNoNumbersStaySo) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  // A row with an infinity, one with NaN alone, a tiny one.
  const std::vector<float> x{1, inf, 2, 3, 1, nan, 2, 3, 1e-40f, 0, 0, 1e-41f};
  const Tensor k = Tensor::from<float>({1, 3, 4}, std::span<const float>(x));
  for (const DType type : {DType::i8, DType::f8e4m3fn}) {
    const Tensor pages = coded(Tensor::zeros(DType::f32, {1, 1, 3, 4}), type);
    const auto got = tests::run_kernels("kv_append", {}, {k, k, pages, pages, ints({3}, {0, 1, 2})}, 2);
    const auto read = decoded(got.at(0).out[0]).to_doubles();
    for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(std::isnan(read[i])) << i;
    for (size_t i = 8; i < 12; ++i) EXPECT_EQ(read[i], 0) << i;
  }
}

}  // namespace
}  // namespace trireme::ops
