// Attention's backward pass against naive double loops, over causality, windows, masks, caps, grouped heads,
// sizes and levels; its bits over team sizes.
#include "backend/cpu/attention/attention_grad.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/attention/wave.h"
#include "backend/cpu/simd/simd_level.h"
#include "base/error.h"
#include "base/rng.h"

namespace trireme::cpu {
namespace {

struct GradShape {
  int64_t batch, queries, keys, heads, kv_heads, head_dim, value_dim;
  bool causal, masked;
  int64_t left = -1;
  float softcap = 0;
};

/// Operands, results and the forward pass of one case. Rows of q, k, v are wider than their heads.
struct GradProblem {
  GradShape s;
  std::vector<float> q, k, v, mask, y, lse, dy, dq, dk, dv, ds;
  AttentionGrad args;

  explicit GradProblem(const GradShape& shape) : s(shape) {
    const int64_t qw = s.heads * s.head_dim + 3, kw = s.kv_heads * s.head_dim + 1,
                  vw = s.kv_heads * s.value_dim + 2;
    q = wave(s.batch * s.queries * qw, 1);
    k = wave(s.batch * s.keys * kw, 2);
    v = wave(s.batch * s.keys * vw, 3);
    dy = wave(s.batch * s.queries * s.heads * s.value_dim, 4);
    mask = wave(s.queries * s.keys, 5);
    for (int64_t i = 0; i < s.queries; ++i) mask[static_cast<size_t>(i * s.keys)] = -INFINITY;
    y.resize(dy.size());
    lse.resize(static_cast<size_t>(s.batch * s.heads * s.queries));
    dq.assign(q.size(), -7);
    dk.assign(k.size(), -7);
    dv.assign(v.size(), -7);
    ds.assign(static_cast<size_t>(s.batch * s.heads * s.queries * s.keys), -7);
    Attention& f = args.forward;
    f = {{q.data(), s.queries * qw, qw, s.head_dim},
         {k.data(), s.keys * kw, kw, s.head_dim},
         {v.data(), s.keys * vw, vw, s.value_dim},
         y.data(),
         s.batch,
         s.queries,
         s.keys,
         s.heads,
         s.kv_heads,
         s.head_dim,
         s.value_dim,
         0.3f};
    f.causal = s.causal;
    f.left = s.left;
    f.softcap = s.softcap;
    if (s.masked) f.mask = {mask.data(), 0, 0, s.keys};
    f.log_sum_exp = lse.data();
    args.y = y.data();
    args.log_sum_exp = lse.data();
    args.dy = dy.data();
    args.dq = {dq.data(), s.queries * qw, qw, s.head_dim};
    args.dk = {dk.data(), s.keys * kw, kw, s.head_dim};
    args.dv = {dv.data(), s.keys * vw, vw, s.value_dim};
    args.dscores = ds.data();
  }

  void run(int threads) {
    base::ThreadPool pool(threads);
    attention(args.forward, pool);
    std::vector<char> workspace(attention_grad_workspace_bytes(args.forward, threads));
    attention_grad(args, workspace.data(), pool);
  }
};

/// Element (batch, position, head, channel) of a strided view.
template <class View>
size_t at(const View& v, int64_t b, int64_t i, int64_t h, int64_t c) {
  return static_cast<size_t>(b * v.stride_batch + i * v.stride_seq + h * v.stride_head + c);
}

struct Want {
  std::vector<double> dq, dk, dv, ds;
};

Want naive(const GradProblem& p) {
  const GradShape& s = p.s;
  const Attention& f = p.args.forward;
  Want w{std::vector<double>(p.q.size()), std::vector<double>(p.k.size()), std::vector<double>(p.v.size()),
         std::vector<double>(p.ds.size())};
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t g = h / (s.heads / s.kv_heads);
      for (int64_t i = 0; i < s.queries; ++i) {
        std::vector<double> e(static_cast<size_t>(s.keys)), dp(e.size()), slope(e.size(), 1);
        double sum = 0, mean = 0;
        const size_t dy_at = static_cast<size_t>(((b * s.queries + i) * s.heads + h) * s.value_dim);
        for (int64_t j = 0; j < s.keys; ++j) {
          double score = 0;
          for (int64_t c = 0; c < s.head_dim; ++c)
            score += double(p.q[at(f.q, b, i, h, c)]) * double(p.k[at(f.k, b, j, g, c)]);
          const size_t n = static_cast<size_t>(j);
          score *= double(f.scale);
          if (s.softcap > 0) {
            const double t = std::tanh(score / double(s.softcap));
            score = double(s.softcap) * t;
            slope[n] = 1 - t * t;
          }
          if (s.masked) score += double(p.mask[static_cast<size_t>(i * s.keys + j)]);
          const bool is_hidden = (s.causal && j > i) || (s.left >= 0 && i - j > s.left);
          e[n] = is_hidden ? 0 : std::exp(score);
          sum += e[n];
          for (int64_t c = 0; c < s.value_dim; ++c)
            dp[n] += double(p.dy[dy_at + static_cast<size_t>(c)]) * double(p.v[at(f.v, b, j, g, c)]);
        }
        if (sum == 0) continue;
        for (size_t n = 0; n < e.size(); ++n) mean += e[n] / sum * dp[n];
        for (int64_t j = 0; j < s.keys; ++j) {
          const double prob = e[static_cast<size_t>(j)] / sum;
          const double masked = prob * (dp[static_cast<size_t>(j)] - mean);
          w.ds[static_cast<size_t>(((b * s.heads + h) * s.queries + i) * s.keys + j)] = masked;
          const double ds = masked * slope[static_cast<size_t>(j)] * double(f.scale);
          for (int64_t c = 0; c < s.head_dim; ++c) {
            w.dq[at(f.q, b, i, h, c)] += ds * double(p.k[at(f.k, b, j, g, c)]);
            w.dk[at(f.k, b, j, g, c)] += ds * double(p.q[at(f.q, b, i, h, c)]);
          }
          for (int64_t c = 0; c < s.value_dim; ++c)
            w.dv[at(f.v, b, j, g, c)] += prob * double(p.dy[dy_at + static_cast<size_t>(c)]);
        }
      }
    }
  }
  return w;
}

/// Memory between the heads of a row must stay unchanged.
void expect_close(const std::vector<float>& got, const std::vector<double>& want, int64_t width,
                  int64_t row) {
  for (size_t n = 0; n < got.size(); ++n) {
    if (static_cast<int64_t>(n) % row >= width) {
      ASSERT_EQ(got[n], -7.0f) << n;
    } else {
      ASSERT_NEAR(double(got[n]), want[n], 2e-4) << n;
    }
  }
}

const std::vector<GradShape> kShapes{{1, 1, 1, 1, 1, 1, 1, false, false},
                                     {2, 70, 70, 4, 2, 16, 16, true, false},
                                     {1, 65, 150, 2, 2, 33, 20, false, true},
                                     {1, 130, 130, 2, 1, 80, 80, true, true},
                                     {1, 40, 17, 3, 3, 64, 7, true, false},
                                     {1, 9, 5, 1, 1, 256, 256, false, false},
                                     {4, 49, 49, 3, 3, 32, 32, false, true},
                                     {1, 200, 200, 2, 2, 24, 40, true, false, 20},
                                     {1, 77, 90, 2, 2, 32, 16, false, true, 70, 1.5f}};

void expect_naive(const GradShape& s) {
  SCOPED_TRACE(base::concat(s.batch, " x ", s.queries, " queries, ", s.keys, " keys, ", s.heads, " over ",
                            s.kv_heads, " heads of ", s.head_dim, " and ", s.value_dim, ", causal ", s.causal,
                            ", masked ", s.masked, ", left ", s.left, ", cap ", s.softcap));
  GradProblem p(s);
  p.run(2);
  const Want want = naive(p);
  expect_close(p.dq, want.dq, s.heads * s.head_dim, s.heads * s.head_dim + 3);
  expect_close(p.dk, want.dk, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim + 1);
  expect_close(p.dv, want.dv, s.kv_heads * s.value_dim, s.kv_heads * s.value_dim + 2);
  expect_close(p.ds, want.ds, s.keys, s.keys);
}

TEST(AttentionGrad, MatchesNaiveLoopsAtEveryLevel) {
  for (const SimdLevel& level : simd_levels()) {
    simd_force(level);
    SCOPED_TRACE(level.name);
    for (const GradShape& s : kShapes) expect_naive(s);
  }
  simd_unforce();
}

TEST(AttentionGrad, MatchesNaiveLoopsOverRandomShapes) {
  base::Rng rng(17);
  const auto up_to = [&](int64_t most) {
    return 1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(most)));
  };
  for (int i = 0; i < 60; ++i) {
    const int64_t kv_heads = up_to(3), queries = up_to(150);
    GradShape s{up_to(2),  queries, up_to(150), kv_heads * up_to(3), kv_heads, up_to(70),
                up_to(70), false,   false};
    s.causal = up_to(2) == 1;
    s.masked = up_to(2) == 1;
    if (up_to(3) == 1) s.left = up_to(queries) - 1;
    if (up_to(4) == 1) s.softcap = 2;
    ASSERT_NO_FATAL_FAILURE(expect_naive(s));
  }
}

TEST(AttentionGrad, SameBitsForEveryTeam) {
  for (const GradShape& s : kShapes) {
    GradProblem one(s);
    one.run(1);
    for (const int threads : {2, 3, 4}) {
      GradProblem p(s);
      p.run(threads);
      EXPECT_EQ(p.dq, one.dq) << threads << " threads";
      EXPECT_EQ(p.dk, one.dk);
      EXPECT_EQ(p.dv, one.dv);
      EXPECT_EQ(p.ds, one.ds);
    }
  }
}

}  // namespace
}  // namespace trireme::cpu
