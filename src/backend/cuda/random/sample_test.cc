// Sampling a row gives the same bits with many blocks as with one, whichever algorithm the blocks choose.
#include "backend/cuda/random/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/random/token_blocks.h"
#include "base/rng.h"
#include "tests/run_on_device.h"

namespace trireme::cuda {
namespace {

constexpr int64_t kColumns = 7;

/// In this order: temperature, top_k, top_p, min_p, repetition, presence, frequency.
using Setting = std::array<float, kColumns>;
constexpr Setting plain(float temperature, float top_k, float top_p, float min_p) {
  return {temperature, top_k, top_p, min_p, 1, 0, 0};
}

class SampleBlocks : public testing::Test {
 protected:
  struct Rows {
    int64_t n;
    std::vector<float> logits;  ///< [rows, n]
    std::vector<Setting> settings;
    std::vector<int32_t> seen = {};  ///< [1, n]; empty: no penalties
  };
  struct Drawn {
    std::vector<int64_t> tokens;
    std::vector<uint32_t> log_bits;
    std::vector<DrawWay> ways;
    int64_t launches = 0;
  };

  template <class V>
  std::shared_ptr<void> there(const std::vector<V>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(V));
    std::shared_ptr<void> memory = device_->allocate(std::max<int64_t>(bytes, 1));
    stream_->upload(memory.get(), values.data(), bytes);
    return memory;
  }
  template <class V>
  void take(std::vector<V>& to, const void* from) {
    stream_->download(to.data(), from, static_cast<int64_t>(to.size() * sizeof(V)));
  }

  Drawn draw(const Rows& r, bool by_blocks, bool wants_logarithm = true) {
    const auto rows = static_cast<int64_t>(r.settings.size());
    std::vector<float> settings;
    std::vector<int64_t> counters;
    for (const Setting& s : r.settings) {
      settings.insert(settings.end(), s.begin(), s.end());
      counters.insert(counters.end(), {11, static_cast<int64_t>(counters.size()) + seed_});
    }
    Drawn drawn;
    drawn.tokens.assign(r.settings.size(), -7);
    drawn.log_bits.assign(r.settings.size(), 0xffffffff);
    drawn.ways.resize(r.settings.size());
    const auto x = there(r.logits), set = there(settings), count = there(counters), seen = there(r.seen);
    const auto places = there(std::vector<int32_t>(r.settings.size(), r.seen.empty() ? -1 : 0));
    const auto y = there(drawn.tokens), log = there(drawn.log_bits);
    const int64_t room = sample_workspace_bytes(rows, r.n);
    const auto workspace = there(std::vector<unsigned char>(static_cast<size_t>(room), 0xa5));
    stream_->synchronize();
    const SampleArgs args{.x = x.get(),
                          .settings = static_cast<const float*>(set.get()),
                          .counters = static_cast<const int64_t*>(count.get()),
                          .seen = r.seen.empty() ? nullptr : static_cast<const int32_t*>(seen.get()),
                          .row_places = static_cast<const int32_t*>(places.get()),
                          .y = static_cast<int64_t*>(y.get()),
                          .log_probability = wants_logarithm ? static_cast<float*>(log.get()) : nullptr,
                          .rows = rows,
                          .n = r.n,
                          .columns = kColumns,
                          .places = 1};
    const On on{*stream_, tensor::DType::f32};
    const int64_t before = cuda_stream(*stream_).launches();
    by_blocks ? sample_tokens(on, args, workspace.get()) : sample_tokens_by_rows(on, args);
    drawn.launches = cuda_stream(*stream_).launches() - before;
    take(drawn.tokens, y.get());
    take(drawn.log_bits, log.get());
    for (int64_t row = 0; by_blocks && row < rows && room > 0; ++row) {
      const auto* at = static_cast<const std::byte*>(workspace.get()) + row * TokenBlocks::bytes(r.n);
      TokenBlocks::State state;
      stream_->download(&state, at, sizeof state);
      stream_->synchronize();
      drawn.ways[static_cast<size_t>(row)] = state.way;
    }
    stream_->synchronize();
    return drawn;
  }

  Drawn expect_same(const Rows& rows) {
    const Drawn one = draw(rows, false), many = draw(rows, true);
    EXPECT_EQ(one.tokens, many.tokens) << rows.n;
    EXPECT_EQ(one.log_bits, many.log_bits) << rows.n;
    for (const int64_t token : many.tokens) EXPECT_TRUE(token >= 0 && token < rows.n);
    return many;
  }

  /// One row of normally distributed logits with this standard deviation for each setting.
  Rows normal(int64_t n, float deviation, std::vector<Setting> settings) {
    base::Rng rng(static_cast<uint64_t>(n) * 31 + static_cast<uint64_t>(seed_));
    Rows rows{n, {}, std::move(settings)};
    const auto unit = [&] { return (static_cast<float>(rng() >> 8) + 0.5f) * 0x1p-24f; };
    for (size_t i = 0; i < rows.settings.size() * static_cast<size_t>(n); ++i)
      rows.logits.push_back(deviation * std::sqrt(-2 * std::log(unit())) * std::cos(6.2831853f * unit()));
    return rows;
  }

  void SetUp() override {
    std::string why;
    device_ = tests::open_test_device(why);
    if (device_ == nullptr) GTEST_SKIP() << why;
    stream_ = device_->open_stream(pool_);
  }

  int64_t seed_ = 0;
  base::ThreadPool pool_{2};
  std::unique_ptr<tensor::Device> device_;
  std::unique_ptr<tensor::Stream> stream_;
};

const std::vector<Setting> kSettings{
    plain(0, 0, 1, 0),          plain(1, 0, 1, 0),           plain(0.7f, 0, 1, 0.05f),
    plain(1, 40, 1, 0),         plain(0.8f, 40, 0.9f, 0),    plain(1, 0, 0.9f, 0),
    plain(0.6f, 0, 0.5f, 0.1f), plain(1.5f, 1000, 0.95f, 0), plain(1e-3f, 3, 0.5f, 0)};

TEST_F(SampleBlocks, HaveTheBitsOfOneBlockOverSizes) {
  const Drawn drawn = expect_same(normal(kTokensForBlocks, 3, kSettings));
  if (!has_toolkit()) {
    EXPECT_EQ(drawn.launches, 3);
  }
  EXPECT_EQ(drawn.ways[0], DrawWay::best);
  EXPECT_EQ(drawn.ways[1], DrawWay::place);
  EXPECT_EQ(drawn.ways[2], DrawWay::place);
  for (size_t i = 3; i < kSettings.size(); ++i) EXPECT_EQ(drawn.ways[i], DrawWay::list) << i;
  // One token more than whole blocks hold, one token less; a usual vocabulary.
  for (const int64_t n : {16385, 18431})
    expect_same(normal(n, 3, {plain(1, 0, 1, 0), plain(1, 40, 0.9f, 0)}));
  expect_same(normal(50257, 3, {plain(1, 0, 0.9f, 0)}));
}

TEST_F(SampleBlocks, ManyDrawsOfOneRow) {
  for (const Setting& setting : {plain(1, 0, 1, 0), plain(1, 50, 0.9f, 0.01f)}) {
    Rows rows = normal(17000, 1, {setting});
    const std::vector<float> row = rows.logits;
    rows.settings.assign(6, setting);
    for (int i = 1; i < 6; ++i) rows.logits.insert(rows.logits.end(), row.begin(), row.end());
    const Drawn drawn = expect_same(rows);
    EXPECT_GT(std::set<int64_t>(drawn.tokens.begin(), drawn.tokens.end()).size(), 2u);  // really random
  }
}

TEST_F(SampleBlocks, FlatRowsWhoseCutsKeepTooManyAreDrawnByOneBlock) {
  const Drawn drawn = expect_same(normal(20000, 0.1f, {plain(1, 0, 0.9f, 0), plain(1, 15000, 1, 0)}));
  EXPECT_EQ(drawn.ways, (std::vector<DrawWay>{DrawWay::row, DrawWay::row}));
}

TEST_F(SampleBlocks, TiesRuledOutTokensAndNumbersThatAreNone) {
  Rows ties = normal(16500, 3, {plain(1, 0, 1, 0), plain(1, 40, 1, 0), plain(1, 0, 0.9f, 0)});
  for (size_t i = 0; i < ties.logits.size(); ++i)
    ties.logits[i] = i % 3 == 0 ? -INFINITY : i % 1001 == 5 ? NAN : std::floor(ties.logits[i]);
  expect_same(ties);
  for (const float all : {-0.0f, -INFINITY, INFINITY, std::nanf("")}) {
    Rows same{16400, std::vector<float>(16400 * 2, all), {plain(1, 0, 1, 0), plain(1, 5, 0.5f, 0)}};
    expect_same(same);
    same.logits[16399] = 1, same.logits[16400 + 5000] = INFINITY;
    if (all < 0) expect_same(same);
  }
}

TEST_F(SampleBlocks, PenaltiesChangeScoresNotLogProbabilities) {
  std::vector<Setting> settings{plain(0, 0, 1, 0), plain(1, 0, 1, 0), plain(1, 40, 0.9f, 0)};
  for (Setting& s : settings) s[4] = 1.3f, s[5] = 0.25f, s[6] = 0.5f;
  Rows rows = normal(20001, 3, settings);
  for (int64_t i = 0; i < rows.n; ++i) rows.seen.push_back(i % 5 == 0 ? static_cast<int32_t>(i % 9) : 0);
  const Drawn with = expect_same(rows);
  rows.seen.clear();
  EXPECT_NE(draw(rows, true).tokens, with.tokens);
}

TEST_F(SampleBlocks, WithoutLogProbabilitiesNothingIsSummed) {
  const Rows rows = normal(16384, 3, {plain(1, 0, 1, 0), plain(1, 40, 1, 0)});
  const Drawn drawn = draw(rows, true, false);
  EXPECT_EQ(drawn.tokens, draw(rows, false, false).tokens);
  for (const uint32_t bits : drawn.log_bits) EXPECT_EQ(bits, 0xffffffffu);  // was not written
}

TEST_F(SampleBlocks, ShortRowsTakeOneLaunchAndNoWorkspace) {
  EXPECT_EQ(sample_workspace_bytes(8, kTokensForBlocks - 1), 0);
  const Drawn drawn = expect_same(normal(5000, 3, {plain(1, 40, 1, 0)}));
  if (!has_toolkit()) {
    EXPECT_EQ(drawn.launches, 1);
  }
}

}  // namespace
}  // namespace trireme::cuda
