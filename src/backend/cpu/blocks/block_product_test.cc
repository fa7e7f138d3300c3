// Products with weights in blocks: every format at every SIMD level against sums in f64; a row's result does
// not depend on the other rows.
#include "backend/cpu/blocks/block_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "tensor/half.h"

namespace trireme::cpu {
namespace {

using tensor::BlockFormat;

/// A matrix of blocks of random bytes; blocks with very large or non-finite values are replaced.
struct Matrix {
  const BlockFormat* format;
  int64_t n, k;
  std::vector<uint8_t> rows;
  std::vector<float> values;  // [n, k]
  std::vector<uint8_t> packed;
  PackedBlocks blocks;

  Matrix(const BlockFormat& f, int64_t rows_count, int64_t depth, uint64_t seed)
      : format(&f), n(rows_count), k(depth), rows(static_cast<size_t>(n * f.row_bytes(k))) {
    base::Rng rng(seed);
    for (uint8_t& b : rows) b = static_cast<uint8_t>(rng());
    values.resize(static_cast<size_t>(n * k));
    std::vector<float> usual(static_cast<size_t>(f.weights));
    for (int64_t b = 0; b < n * k / f.weights; ++b) {
      uint8_t* block = rows.data() + b * f.bytes;
      float* out = values.data() + b * f.weights;
      f.decode(block, 1, out);
      bool is_usual = true;
      for (int64_t i = 0; i < f.weights; ++i) is_usual = is_usual && std::fabs(out[i]) < 1e4f;
      if (is_usual) continue;
      for (float& v : usual) v = static_cast<float>(rng.normal());
      f.encode(usual.data(), 1, block, nullptr);
      f.decode(block, 1, out);
    }
    packed.resize(static_cast<size_t>(packed_block_bytes(f, n, k)) + 8192);  // kernels prefetch past the end
    base::ThreadPool pool(2);
    blocks = pack_blocks({&f, rows.data(), n, k}, packed.data(), pool);
  }
};

std::vector<float> numbers(int64_t count, uint64_t seed) {
  base::Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

/// How a product is computed.
struct Way {
  bool rounds = true;
  Isa isa = best_isa();
  int threads = 1;
};

std::vector<float> product(const Matrix& w, const std::vector<float>& x, const float* bias, const Way& way) {
  const int64_t m = static_cast<int64_t>(x.size()) / w.k;
  std::vector<float> y(static_cast<size_t>(m * w.n), NAN);
  std::vector<std::byte> workspace(static_cast<size_t>(block_product_workspace(w.blocks, m)));
  base::ThreadPool pool(way.threads);
  const BlockResult to{w.blocks, bias, y.data()};
  block_products({.results = {&to, 1}, .x = x.data(), .m = m, .rounds = way.rounds, .isa = way.isa},
                 workspace.data(), pool);
  return y;
}

/// Rounds as products with a format do: each 32 neighbours to the nearest of 255 multiples of their scale; to
/// bf16 where weights are bf16, and not at all where they are f16.
std::vector<double> rounded(const BlockFormat& format, const std::vector<float>& x) {
  std::vector<double> out(x.begin(), x.end());
  if (format.name == "f16") return out;
  if (format.name == "bf16") {
    for (double& v : out) v = double{tensor::BFloat16(v)};
    return out;
  }
  for (size_t i = 0; i < x.size(); i += 32) {
    float most = 0;
    for (size_t j = i; j < i + 32; ++j) most = std::max(most, std::fabs(x[j]));
    for (size_t j = i; j < i + 32; ++j)
      out[j] = most > 0 ? std::nearbyint(static_cast<double>(x[j] * (127 / most))) *
                              static_cast<double>(most) / 127
                        : 0;
  }
  return out;
}

/// Compares with sums in f64, within the error that f32 sums in any order may have.
void expect_near(const Matrix& w, const std::vector<float>& x, const std::vector<float>& bias,
                 const Way& way) {
  const std::vector<float> y = product(w, x, bias.data(), way);
  const std::vector<double> rows =
      way.rounds ? rounded(*w.format, x) : std::vector<double>(x.begin(), x.end());
  const int64_t m = static_cast<int64_t>(x.size()) / w.k;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t n = 0; n < w.n; ++n) {
      double sum = static_cast<double>(bias[static_cast<size_t>(n)]), size = std::abs(sum);
      for (int64_t k = 0; k < w.k; ++k) {
        const double term = rows[static_cast<size_t>(i * w.k + k)] *
                            static_cast<double>(w.values[static_cast<size_t>(n * w.k + k)]);
        sum += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(y[static_cast<size_t>(i * w.n + n)], sum, 1e-5 * size + 1e-30)
          << w.format->name << " on " << to_string(way.isa) << (way.rounds ? " rounded" : " f32") << ", row "
          << i << " of " << m << ", column " << n;
    }
  }
}

TEST(BlockProduct, PackedRowsAreTheDecodersNumbers) {
  for (const BlockFormat& f : tensor::all_block_formats()) {
    const Matrix w(f, 37, 2 * f.weights, 11);
    std::vector<float> row(static_cast<size_t>(w.k));
    for (int64_t n = 0; n < w.n; ++n) {
      unpack_row(w.blocks, n, row.data());
      ASSERT_EQ(std::memcmp(row.data(), w.values.data() + n * w.k, row.size() * 4), 0)
          << f.name << " row " << n;
    }
    const double bytes = static_cast<double>(packed_block_bytes(f, 48, w.k));
    EXPECT_LE(bytes, 1.05 * static_cast<double>(48 * f.row_bytes(w.k))) << f.name;
  }
}

TEST(BlockProduct, EveryFormatOnEveryLevel) {
  uint64_t seed = 1;
  for (const BlockFormat& f : tensor::all_block_formats()) {
    for (const int64_t n : {1, 16, 21, 40}) {
      ++seed;
      const Matrix w(f, n, (seed % 3 + 1) * f.weights, seed);
      const std::vector<float> bias = numbers(n, 5);
      for (const int64_t m : {1, 2, 3, 7, 17}) {
        const std::vector<float> x = numbers(m * w.k, ++seed);
        for (const Isa isa : usable_isas()) {
          for (const bool rounds : {true, false}) {
            expect_near(w, x, bias, {rounds, isa, 2});
          }
        }
      }
    }
  }
}

TEST(BlockProduct, RowsDoNotDependOnMatesOrTeam) {
  for (const BlockFormat& f : tensor::all_block_formats()) {
    const Matrix w(f, 53, 2 * f.weights, 21);
    const int64_t m = 19;
    const std::vector<float> x = numbers(m * w.k, 22);
    for (const Isa isa : usable_isas()) {
      for (const bool rounds : {true, false}) {
        const std::vector<float> all = product(w, x, nullptr, {rounds, isa, 1});
        for (const int threads : {2, 3})
          EXPECT_EQ(product(w, x, nullptr, {rounds, isa, threads}), all) << f.name;
        for (const int64_t size : {1, 2, 5}) {
          for (int64_t row = 0; row + size <= m; row += size) {
            const std::vector<float> some(x.begin() + row * w.k, x.begin() + (row + size) * w.k);
            const std::vector<float> y = product(w, some, nullptr, {rounds, isa, 1});
            ASSERT_EQ(std::memcmp(y.data(), all.data() + row * w.n, y.size() * 4), 0)
                << f.name << " " << to_string(isa) << " rows " << row << " on of " << size;
          }
        }
      }
    }
  }
}

TEST(BlockProduct, NoLevelFallsBehindTheOneBelowIt) {
  const BlockKernels* below = nullptr;
  for (const Isa isa : usable_isas()) {
    const BlockKernels* own = &block_kernels(isa);
    EXPECT_EQ(own == &block_kernels_portable(), isa == Isa::portable) << to_string(isa);
    EXPECT_TRUE(own != below || isa == Isa::amx) << to_string(isa);
    below = own;
  }
}

TEST(BlockProduct, SeveralMatricesGiveWhatEachGivesAlone) {
  for (const BlockFormat& f : tensor::all_block_formats()) {
    const int64_t k = 2 * f.weights, m = 19;
    const Matrix some[3] = {{f, 37, k, 41}, {f, 5, k, 42}, {f, 130, k, 43}};
    const std::vector<float> x = numbers(m * k, 44), bias = numbers(5, 45);
    std::vector<std::byte> workspace(static_cast<size_t>(block_product_workspace(some[0].blocks, m)));
    for (const int threads : {1, 2, 3}) {
      base::ThreadPool pool(threads);
      std::vector<float> y[3];
      std::vector<BlockResult> to;
      for (size_t i = 0; i < 3; ++i) {
        y[i].assign(static_cast<size_t>(m * some[i].n), NAN);
        to.push_back({some[i].blocks, i == 1 ? bias.data() : nullptr, y[i].data()});
      }
      block_products({.results = to, .x = x.data(), .m = m}, workspace.data(), pool);
      for (size_t i = 0; i < 3; ++i)
        EXPECT_EQ(y[i], product(some[i], x, to[i].bias, {})) << f.name << " matrix " << i;
    }
  }
}

TEST(BlockProduct, MatricesOfSeveralFormatsGiveWhatEachGivesAlone) {
  const Matrix some[3] = {{tensor::need_block_format("q4_k"), 64, 512, 41},
                          {tensor::need_block_format("bf16"), 32, 512, 42},
                          {tensor::need_block_format("q4_0"), 32, 512, 43}};
  for (const int64_t m : {1, 5, 19}) {
    const std::vector<float> x = numbers(m * 512, 44);
    const PackedBlocks weights[] = {some[0].blocks, some[1].blocks, some[2].blocks};
    std::vector<std::byte> workspace(static_cast<size_t>(block_product_workspace(weights, m)));
    for (const bool rounds : {true, false}) {
      for (const int64_t slices : {1, 2}) {
        base::ThreadPool pool(3);
        std::vector<float> y[3];
        std::vector<BlockResult> to;
        for (size_t i = 0; i < 3; ++i) {
          y[i].assign(static_cast<size_t>(m * some[i].n), NAN);
          to.push_back({some[i].blocks, nullptr, y[i].data()});
        }
        block_products({.results = to, .x = x.data(), .m = m, .rounds = rounds, .slices = slices},
                       workspace.data(), pool);
        for (size_t i = 0; i < 3; ++i)
          EXPECT_EQ(y[i], product(some[i], x, nullptr, {rounds})) << some[i].format->name << " m " << m;
      }
    }
  }
}

TEST(BlockProduct, RowsThatAreNotFiniteSpoilNoOthers) {
  for (const BlockFormat& f : tensor::all_block_formats()) {
    const Matrix w(f, 16, f.weights, 31);
    for (const float bad : {NAN, std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = numbers(3 * w.k, 32);
      const std::vector<float> clean = product(w, x, nullptr, {});
      x[static_cast<size_t>(w.k) + 5] = bad;
      for (const Isa isa : usable_isas()) {
        const std::vector<float> y = product(w, x, nullptr, {true, isa, 1});
        for (size_t i = 0; i < 16; ++i) {
          EXPECT_FALSE(std::isfinite(y[16 + i])) << f.name << " " << to_string(isa);
          EXPECT_NEAR(y[i], clean[i], 1e-4 * std::fabs(clean[i]) + 1e-2) << f.name;
        }
      }
    }
    // Rows of zeros and of tiny values.
    const std::vector<float> zeros(static_cast<size_t>(w.k), 0.0f), tiny(static_cast<size_t>(w.k), 1e-42f);
    for (const Isa isa : usable_isas()) {
      for (const float v : product(w, zeros, nullptr, {true, isa, 1})) EXPECT_EQ(v, 0.0f) << f.name;
      for (const float v : product(w, tiny, nullptr, {true, isa, 1}))
        EXPECT_LT(std::fabs(v), 1e-36f) << f.name;
    }
  }
}

}  // namespace
}  // namespace trireme::cpu
