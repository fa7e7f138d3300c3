// Attention against naive loops in double, over masks, causality, grouped heads, sizes, levels and thread
// counts.
#include "backend/cpu/attention/attention_encoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/attention/wave.h"
#include "backend/cpu/simd/simd_level.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct EncoderShape {
  int64_t batch, queries, keys, heads, kv_heads, head_dim, value_dim;
};

enum class MaskKind { none, padding, full };

// Operands of one case: q, k, v interleaved in one [batch, seq, q+k+v] buffer where lengths agree.
struct EncoderProblem {
  EncoderShape s;
  std::vector<float> q, k, v, mask, out;
  Attention args;

  EncoderProblem(const EncoderShape& shape, MaskKind kind, bool causal) : s(shape) {
    q = wave(s.batch * s.queries * s.heads * s.head_dim + 1, 1);
    k = wave(s.batch * s.keys * s.kv_heads * s.head_dim + 1, 2);
    v = wave(s.batch * s.keys * s.kv_heads * s.value_dim + 1, 3);
    out.assign(static_cast<size_t>(s.batch * s.queries * s.heads * s.value_dim + 1), -77.0f);
    // An offset of one float misaligns the inputs.
    args = {{q.data() + 1, s.queries * s.heads * s.head_dim, s.heads * s.head_dim, s.head_dim},
            {k.data() + 1, s.keys * s.kv_heads * s.head_dim, s.kv_heads * s.head_dim, s.head_dim},
            {v.data() + 1, s.keys * s.kv_heads * s.value_dim, s.kv_heads * s.value_dim, s.value_dim},
            out.data(),
            s.batch,
            s.queries,
            s.keys,
            s.heads,
            s.kv_heads,
            s.head_dim,
            s.value_dim,
            0.7f,
            {},
            causal,
            s.keys - s.queries};
    if (kind == MaskKind::none) return;
    const int64_t rows = kind == MaskKind::padding ? s.batch : s.batch * s.heads * s.queries;
    mask = wave(rows * s.keys, 4);
    for (size_t i = 0; i < mask.size(); ++i) {
      if (i % 5 == 2) mask[i] = -kInf;
    }
    if (kind == MaskKind::padding)
      args.mask = {mask.data(), s.keys, 0, 0};
    else
      args.mask = {mask.data(), s.heads * s.queries * s.keys, s.queries * s.keys, s.keys};
  }

  double score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (args.causal && j > i + args.causal_offset) return -HUGE_VAL;
    const int64_t kh = h / (s.heads / s.kv_heads);
    double dot = 0;
    for (int64_t d = 0; d < s.head_dim; ++d) {
      dot += static_cast<double>(
                 args.q.data[b * args.q.stride_batch + i * args.q.stride_seq + h * s.head_dim + d]) *
             args.k.data[b * args.k.stride_batch + j * args.k.stride_seq + kh * s.head_dim + d];
    }
    const AttentionMask& m = args.mask;
    const double add =
        m.data == nullptr ? 0 : m.data[b * m.stride_batch + h * m.stride_head + i * m.stride_query + j];
    return dot * static_cast<double>(0.7f) + add;
  }

  void check_query(int64_t b, int64_t h, int64_t i) const {
    std::vector<double> p;
    double max = -1e300, sum = 0;
    for (int64_t j = 0; j < s.keys; ++j) p.push_back(score(b, h, i, j)), max = std::max(max, p.back());
    for (double& x : p) x = std::exp(x - max), sum += x;
    const int64_t kh = h / (s.heads / s.kv_heads);
    for (int64_t d = 0; d < s.value_dim; ++d) {
      double want = 0;
      for (int64_t j = 0; j < s.keys; ++j) {
        want += p[static_cast<size_t>(j)] *
                args.v.data[b * args.v.stride_batch + j * args.v.stride_seq + kh * s.value_dim + d];
      }
      want = sum > 0 ? want / sum : 0;
      const size_t at = static_cast<size_t>(((b * s.queries + i) * s.heads + h) * s.value_dim + d);
      ASSERT_NEAR(out[at], want, 3e-6) << "query " << i << " keys " << s.keys << " dim " << s.head_dim;
    }
  }

  void check(base::ThreadPool& pool) {
    attention(args, pool);
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t i = 0; i < s.queries; ++i) check_query(b, h, i);
      }
    }
    ASSERT_EQ(out.back(), -77.0f);
  }
};

class AttentionAtLevel : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { simd_force(GetParam()); }
  void TearDown() override { simd_unforce(); }
  base::ThreadPool pool_{3};
};

TEST_P(AttentionAtLevel, ShapesMasksCausality) {
  const EncoderShape shapes[] = {{1, 1, 1, 1, 1, 1, 1},     {2, 5, 5, 3, 3, 8, 8},
                                 {1, 64, 64, 2, 2, 32, 32}, {1, 17, 130, 4, 2, 16, 20},
                                 {2, 70, 70, 2, 1, 33, 65}, {1, 1, 300, 4, 4, 64, 64},
                                 {1, 129, 257, 1, 1, 7, 3}, {1, 3, 3, 1, 1, 256, 256}};
  for (const EncoderShape& s : shapes) {
    for (MaskKind kind : {MaskKind::none, MaskKind::padding, MaskKind::full}) {
      for (bool causal : {false, true}) EncoderProblem(s, kind, causal).check(pool_);
    }
  }
}

TEST_P(AttentionAtLevel, ExcludedQueriesGiveZero) {
  EncoderProblem p({1, 20, 140, 1, 1, 8, 8}, MaskKind::padding, false);
  std::fill(p.mask.begin(), p.mask.end(), -kInf);
  p.check(pool_);
  for (size_t i = 0; i + 1 < p.out.size(); ++i) ASSERT_EQ(p.out[i], 0.0f);
  EncoderProblem none({1, 3, 0, 1, 1, 8, 8}, MaskKind::none, false);
  attention(none.args, pool_);
  for (size_t i = 0; i + 1 < none.out.size(); ++i) ASSERT_EQ(none.out[i], 0.0f);
}

TEST_P(AttentionAtLevel, QueriesUnderTheLowestFloatAreAverages) {
  EncoderProblem p({1, 20, 140, 1, 1, 8, 8}, MaskKind::padding, false);
  std::fill(p.mask.begin(), p.mask.end(), std::numeric_limits<float>::lowest());
  attention(p.args, pool_);
  for (int64_t d = 0; d < 8; ++d) {
    double mean = 0;
    for (int64_t j = 0; j < 140; ++j) mean += p.args.v.data[j * 8 + d] / 140.0;
    for (size_t i = 0; i < 20; ++i) ASSERT_NEAR(p.out[i * 8 + static_cast<size_t>(d)], mean, 3e-6);
  }
}

TEST_P(AttentionAtLevel, LateMaximumRescales) {
  // The largest scores come in the last step of keys, so earlier sums must be rescaled.
  EncoderProblem p({1, 9, 300, 1, 1, 4, 4}, MaskKind::full, false);
  for (size_t i = 0; i < p.mask.size(); ++i) p.mask[i] = i % 300 > 280 ? 60.0f : -20.0f;
  p.check(pool_);
}

INSTANTIATE_TEST_SUITE_P(Levels, AttentionAtLevel, testing::ValuesIn(simd_levels()),
                         [](const auto& level) { return level.param.name; });

TEST(Attention, SameBitsForThreadsAndBatch) {
  base::ThreadPool one(1), four(4);
  EncoderProblem a({3, 100, 100, 2, 2, 32, 32}, MaskKind::padding, false),
      b = EncoderProblem(a.s, MaskKind::padding, false);
  attention(a.args, one);
  attention(b.args, four);
  EXPECT_EQ(0, std::memcmp(a.out.data(), b.out.data(), a.out.size() * 4));
  // Image 1 without the others.
  std::vector<float> alone(100 * 64);
  Attention single = a.args;
  single.batch = 1;
  single.out = alone.data();
  single.q.data += single.q.stride_batch;
  single.k.data += single.k.stride_batch;
  single.v.data += single.v.stride_batch;
  single.mask.data += single.mask.stride_batch;
  attention(single, four);
  EXPECT_EQ(0, std::memcmp(a.out.data() + 100 * 64, alone.data(), alone.size() * 4));
}

TEST(Attention, RefusesWhatItCannotHold) {
  base::ThreadPool pool(1);
  Attention g{};
  g.head_dim = 512;
  EXPECT_THROW(attention(g, pool), base::Error);
  g.head_dim = 8;
  g.heads = 3;
  g.kv_heads = 2;
  EXPECT_THROW(attention(g, pool), base::Error);
}

}  // namespace
}  // namespace trireme::cpu
