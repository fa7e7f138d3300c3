// attention and attention_bsnd: fused and reference kernels and the expansion, against naive loops in double.
#include <limits>

#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using tests::random_tensor;

struct AttentionCase {
  int64_t batch, queries, keys, heads, kv_heads, dim;
  bool causal;
};

/// bias(b, h, i, j) is added to the scores; q, k, v are [batch, seq, heads, dim].
template <class Bias>
std::vector<double> naive_attention(const AttentionCase& c, const Tensor& q, const Tensor& k, const Tensor& v,
                                    Bias bias) {
  const auto qv = q.to_doubles(), kv = k.to_doubles(), vv = v.to_doubles();
  std::vector<double> y(qv.size());
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t g = h / (c.heads / c.kv_heads);
      for (int64_t i = 0; i < c.queries; ++i) {
        std::vector<double> p;
        double sum = 0;
        for (int64_t j = 0; j < c.keys; ++j) {
          double s = 0;
          for (int64_t d = 0; d < c.dim; ++d) {
            s += qv[size_t(((b * c.queries + i) * c.heads + h) * c.dim + d)] *
                 kv[size_t(((b * c.keys + j) * c.kv_heads + g) * c.dim + d)];
          }
          p.push_back(std::exp(s / std::sqrt(double(c.dim)) + bias(b, h, i, j)) *
                      (c.causal && j > i ? 0 : 1));
          sum += p.back();
        }
        for (int64_t d = 0; d < c.dim; ++d) {
          double out = 0;
          for (int64_t j = 0; j < c.keys; ++j)
            out += p[size_t(j)] / sum * vv[size_t(((b * c.keys + j) * c.kv_heads + g) * c.dim + d)];
          y[size_t(((b * c.queries + i) * c.heads + h) * c.dim + d)] = out;
        }
      }
    }
  }
  return y;
}

TEST(AttentionBsnd, KernelsMatchNaiveLoops) {
  for (const AttentionCase& c :
       {AttentionCase{2, 5, 5, 3, 3, 8, false}, AttentionCase{1, 33, 33, 4, 2, 32, true},
        AttentionCase{3, 1, 70, 2, 1, 64, false}}) {
    const Tensor q = random_tensor({c.batch, c.queries, c.heads, c.dim}, 1),
                 k = random_tensor({c.batch, c.keys, c.kv_heads, c.dim}, 2);
    const Tensor v = random_tensor({c.batch, c.keys, c.kv_heads, c.dim}, 3);
    const auto want = naive_attention(c, q, k, v, [](auto...) { return 0.0; });
    const ir::Attrs attrs{{"is_causal", int64_t{c.causal}}};
    const auto results = tests::run_kernels("attention_bsnd", attrs, {q, k, v});
    ASSERT_EQ(results.size(), 2u);
    for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-4, 1e-5, r.kernel);
    tests::expect_close(tests::run_expanded("attention_bsnd", attrs, {q, k, v})[0], want, 1e-4, 1e-5,
                        "expand");
  }
}

/// A sink acts as a key with a score of its own and no value.
TEST(AttentionBsnd, SinksAreKeysWithoutValues) {
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  for (const AttentionCase& c :
       {AttentionCase{2, 5, 5, 3, 3, 8, false}, AttentionCase{1, 33, 33, 4, 2, 32, true},
        AttentionCase{3, 1, 70, 2, 1, 64, false}}) {
    const Tensor q = random_tensor({c.batch, c.queries, c.heads, c.dim}, 1),
                 k = random_tensor({c.batch, c.keys, c.kv_heads, c.dim}, 2);
    const Tensor v = random_tensor({c.batch, c.keys, c.kv_heads, c.dim}, 3),
                 sinks = random_tensor({c.heads}, 4, 3.0f);
    const auto with_one_more = [&](const Tensor& t) {
      Tensor more = Tensor::zeros(tensor::DType::f32, {c.batch, c.keys + 1, c.kv_heads, c.dim});
      const auto from = t.data<float>();
      const size_t run = from.size() / size_t(c.batch);
      for (size_t b = 0; b < size_t(c.batch); ++b)
        std::copy_n(from.data() + b * run, run,
                    more.mutable_data<float>().data() + b * (run + size_t(c.kv_heads * c.dim)));
      return more;
    };
    const AttentionCase more{c.batch, c.queries, c.keys + 1, c.heads, c.kv_heads, c.dim, false};
    const auto want = naive_attention(more, q, with_one_more(k), with_one_more(v),
                                      [&](int64_t, int64_t h, int64_t i, int64_t j) {
                                        if (j == c.keys) return sinks.to_doubles()[size_t(h)];
                                        return c.causal && j > i ? kHidden : 0.0;
                                      });
    const ir::Attrs attrs{{"is_causal", int64_t{c.causal}}};
    const std::vector<Tensor> in{q, k, v, Tensor(), sinks};
    const auto results = tests::run_kernels("attention_bsnd", attrs, in, 2);
    ASSERT_EQ(results.size(), 2u);
    for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-4, 1e-5, r.kernel);
    tests::expect_close(results[0].out[1], results[1].out[1].to_doubles(), 1e-5, 1e-5, "log-sum-exp");
    const auto expanded = tests::run_expanded("attention_bsnd", attrs, in, 2);
    tests::expect_close(expanded[0], want, 1e-4, 1e-5, "expand");
    tests::expect_close(expanded[1], results[1].out[1].to_doubles(), 1e-5, 1e-5, "expanded log-sum-exp");
    const auto one = tests::run_kernels("attention_bsnd", attrs, in);
    for (const auto& r : one) tests::expect_close(r.out[0], want, 1e-4, 1e-5, r.kernel + " alone");
  }
}

TEST(AttentionBsnd, KeyPaddingHidesKeys) {
  const AttentionCase c{2, 4, 6, 2, 2, 16, false};
  const Tensor q = random_tensor({2, 4, 2, 16}, 1), k = random_tensor({2, 6, 2, 16}, 2),
               v = random_tensor({2, 6, 2, 16}, 3);
  const Tensor mask = Tensor::from<int64_t>({2, 6}, {1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0});
  const auto want = naive_attention(c, q, k, v, [](int64_t b, int64_t, int64_t, int64_t j) {
    return j < (b == 0 ? 3 : 5) ? 0.0 : -std::numeric_limits<double>::infinity();
  });
  for (const auto& r : tests::run_kernels("attention_bsnd", {}, {q, k, v, mask}))
    tests::expect_close(r.out[0], want, 1e-4, 1e-5, r.kernel);
  tests::expect_close(tests::run_expanded("attention_bsnd", {}, {q, k, v, mask})[0], want, 1e-4, 1e-5,
                      "expand");
}

TEST(AttentionBsnd, AdditiveMaskBroadcastsOverHeads) {
  const AttentionCase c{2, 4, 6, 3, 3, 16, false};
  const Tensor q = random_tensor({2, 4, 3, 16}, 1), k = random_tensor({2, 6, 3, 16}, 2),
               v = random_tensor({2, 6, 3, 16}, 3);
  const Tensor mask = random_tensor({2, 1, 4, 6}, 4);
  const auto mv = mask.to_doubles();
  const auto want = naive_attention(
      c, q, k, v, [&](int64_t b, int64_t, int64_t i, int64_t j) { return mv[size_t((b * 4 + i) * 6 + j)]; });
  const auto results = tests::run_kernels("attention_bsnd", {}, {q, k, v, mask});
  ASSERT_EQ(results.size(), 2u);
  for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-4, 1e-5, r.kernel);
}

TEST(Attention, FusedAgreesWithReferenceInBothLayouts) {
  for (const bool flat : {false, true}) {
    const tensor::Dims shape = flat ? tensor::Dims{2, 7, 24} : tensor::Dims{2, 3, 7, 8};
    const std::vector<Tensor> in{random_tensor(shape, 1), random_tensor(shape, 2), random_tensor(shape, 3)};
    ir::Attrs attrs{{"is_causal", int64_t{1}}};
    if (flat) attrs.set("q_num_heads", int64_t{3}).set("kv_num_heads", int64_t{3});
    const auto results = tests::run_kernels("attention", attrs, in, 3);
    ASSERT_EQ(results.size(), 2u);
    for (size_t i = 0; i < 3; ++i)
      tests::expect_close(results[0].out[i], results[1].out[i].to_doubles(), 1e-4, 1e-5, results[0].kernel);
  }
}

}  // namespace
}  // namespace trireme::ops
