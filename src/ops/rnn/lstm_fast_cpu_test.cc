// lstm: the packed kernel against the reference kernel, and both against explicit loops of the recurrence.
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using tests::random_tensor;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// One forward direction, batch row by batch row; returns y [seq, 1, batch, hidden].
std::vector<double> naive(const Tensor& x, const Tensor& w, const Tensor& r, const Tensor& b, size_t hidden) {
  const size_t seq = size_t(x.dims()[0]), batch = size_t(x.dims()[1]), in = size_t(x.dims()[2]);
  const auto xv = x.to_doubles(), wv = w.to_doubles(), rv = r.to_doubles(), bv = b.to_doubles();
  std::vector<double> y(seq * batch * hidden);
  for (size_t n = 0; n < batch; ++n) {
    std::vector<double> h(hidden), c(hidden), g(4 * hidden);
    for (size_t t = 0; t < seq; ++t) {
      for (size_t j = 0; j < 4 * hidden; ++j) {
        g[j] = bv[j] + bv[4 * hidden + j];
        for (size_t i = 0; i < in; ++i) g[j] += wv[j * in + i] * xv[(t * batch + n) * in + i];
        for (size_t i = 0; i < hidden; ++i) g[j] += rv[j * hidden + i] * h[i];
      }
      for (size_t j = 0; j < hidden; ++j) {
        c[j] = sigmoid(g[2 * hidden + j]) * c[j] + sigmoid(g[j]) * std::tanh(g[3 * hidden + j]);
        h[j] = sigmoid(g[hidden + j]) * std::tanh(c[j]);
        y[(t * batch + n) * hidden + j] = h[j];
      }
    }
  }
  return y;
}

TEST(Lstm, KernelsMatchTheRecurrence) {
  const Tensor x = random_tensor({6, 3, 10}, 1), w = random_tensor({1, 64, 10}, 2, 0.3f),
               r = random_tensor({1, 64, 16}, 3, 0.3f), b = random_tensor({1, 128}, 4, 0.3f);
  const auto want = naive(x, w, r, b, 16);
  const auto results = tests::run_kernels("lstm", {{"hidden_size", int64_t{16}}}, {x, w, r, b}, 3, {0});
  ASSERT_EQ(results.size(), 4u);
  for (const auto& k : results) {
    tests::expect_close(k.out[0], want, 1e-4, 1e-5, k.kernel);
    tests::expect_close(k.out[1], std::vector<double>(want.end() - 48, want.end()), 1e-4, 1e-5, k.kernel);
  }
}

TEST(Lstm, BothDirectionsAndInitialStatesAgreeBetweenKernels) {
  const Tensor x = random_tensor({5, 2, 7}, 1), w = random_tensor({2, 36, 7}, 2),
               r = random_tensor({2, 36, 9}, 3, 0.3f), b = random_tensor({2, 72}, 4);
  const Tensor h = random_tensor({2, 2, 9}, 5), c = random_tensor({2, 2, 9}, 6);
  const ir::Attrs attrs{{"hidden_size", int64_t{9}}, {"direction", std::string("bidirectional")}};
  const auto results = tests::run_kernels("lstm", attrs, {x, w, r, b, Tensor(), h, c}, 3, {0, 5, 6});
  ASSERT_EQ(results.size(), 4u);
  for (const auto& k : results) {
    for (size_t i = 0; i < 3; ++i)
      tests::expect_close(k.out[i], results.back().out[i].to_doubles(), 1e-4, 1e-5, k.kernel);
  }
}

TEST(Lstm, ShortSequencesEndInZerosAndKeepTheirLastState) {
  const Tensor x = random_tensor({4, 2, 3}, 1), w = random_tensor({1, 20, 3}, 2),
               r = random_tensor({1, 20, 5}, 3), b = random_tensor({1, 40}, 4);
  const Tensor lengths = Tensor::from<int32_t>({2}, {4, 2});
  const auto results = tests::run_kernels("lstm", {{"hidden_size", int64_t{5}}}, {x, w, r, b, lengths}, 3);
  const auto want = naive(x, w, r, b, 5);
  const auto y = results.at(0).out[0].to_doubles(), last = results[0].out[1].to_doubles();
  for (size_t j = 0; j < 5; ++j) {
    EXPECT_EQ(y[(2 * 2 + 1) * 5 + j], 0);
    EXPECT_NEAR(last[5 + j], want[(1 * 2 + 1) * 5 + j], 1e-5);
  }
}

}  // namespace
}  // namespace trireme::ops
