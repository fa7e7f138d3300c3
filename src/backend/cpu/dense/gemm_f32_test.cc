// Tests f32 products against double loops: odd sizes, misaligned operands, every level, every epilogue, every
// split.
#include "backend/cpu/dense/gemm_f32.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/dense/random_floats.h"
#include "backend/cpu/tiles/dense_kernels.h"

namespace trireme::cpu {
namespace {

double activate(double x, const Epilogue& e) {
  switch (e.act) {
    case Activation::none: return x;
    case Activation::relu: return std::max(x, 0.0);
    case Activation::clip: return std::min<double>(e.hi, std::max<double>(e.lo, x));
    case Activation::sigmoid: return 1 / (1 + std::exp(-x));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::hardswish: return x * std::min(1.0, std::max(0.0, x / 6 + 0.5));
    case Activation::hardsigmoid: return std::min(1.0, std::max(0.0, e.alpha * x + e.beta));
    case Activation::gelu_erf: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::tanh: return std::tanh(x);
    case Activation::leaky: return x < 0 ? e.alpha * x : x;
  }
  return 0;
}

struct Case {
  int64_t m, k, n;
  int64_t extra = 0;  // added to every leading dimension, and to every pointer: misalignment
  int64_t first_row = 0;
};

/// Runs one product in guarded memory and returns c; checks that nothing outside c was touched.
std::vector<float> run(const Case& s, Isa isa, int threads, const Epilogue& e, bool transposed) {
  const int64_t first_row = s.first_row;
  const int64_t lda = s.k + s.extra, ldb = (transposed ? s.k : s.n) + s.extra, ldc = s.n + s.extra;
  const std::vector<float> a = random_floats((s.m + first_row) * lda + s.extra, 1);
  const std::vector<float> b = random_floats((transposed ? s.n : s.k) * ldb + s.extra, 2);
  std::vector<char> packed(packed_b_bytes(s.k, s.n, isa) + 1);
  std::vector<float> c(static_cast<size_t>(s.m * ldc + s.extra), 777.0f);
  std::vector<char> workspace(gemm_workspace_bytes(s.m, s.k, s.n, threads));
  base::ThreadPool pool(threads);
  GemmArgs args;
  args.m = s.m;
  args.a = a.data() + s.extra + first_row * lda;
  args.lda = lda;
  args.b = pack_b({b.data() + s.extra, s.k, s.n, ldb, transposed}, packed.data() + 1, isa);
  args.c = c.data() + s.extra;
  args.ldc = ldc;
  args.epilogue = e;
  gemm(args, workspace.data(), pool);
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = s.n; j < ldc && (i + 1 < s.m || j < s.n); ++j) {
      EXPECT_EQ(args.c[i * ldc + j], 777.0f) << "wrote past column " << s.n;
    }
  }
  return c;
}

void check(const Case& s, Isa isa, const Epilogue& e, bool transposed) {
  const int64_t lda = s.k + s.extra, ldb = (transposed ? s.k : s.n) + s.extra, ldc = s.n + s.extra;
  const std::vector<float> a = random_floats(s.m * lda + s.extra, 1);
  const std::vector<float> b = random_floats((transposed ? s.n : s.k) * ldb + s.extra, 2);
  const std::vector<float> c = run(s, isa, 1, e, transposed);
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0, size = 1;
      for (int64_t k = 0; k < s.k; ++k) {
        const double x = a[s.extra + i * lda + k];
        const double y = transposed ? b[s.extra + j * ldb + k] : b[s.extra + k * ldb + j];
        sum += x * y;
        size += std::abs(x * y);
      }
      if (e.bias) sum += e.bias[j];
      const double residual = e.residual ? e.residual[i * ldc + j] : 0;
      const double want = e.act_before_residual ? activate(sum, e) + residual : activate(sum + residual, e);
      ASSERT_NEAR(c[s.extra + i * ldc + j], want, 1e-6 * size)
          << to_string(isa) << " m=" << s.m << " k=" << s.k << " n=" << s.n << " at " << i << "," << j
          << " act " << static_cast<int>(e.act);
    }
  }
}

const Case kCases[] = {{1, 1, 1},       {1, 7, 33},        {2, 16, 16, 1}, {3, 5, 31, 3},    {13, 17, 47},
                       {14, 64, 32},    {15, 65, 65, 1},   {27, 40, 100},  {29, 3, 130, 5},  {49, 700, 200},
                       {100, 1024, 24}, {7, 1300, 140, 2}, {33, 0, 20},    {129, 96, 150, 1}};

TEST(GemmF32, AgreesWithDoubleLoops) {
  for (const Isa isa : usable_isas()) {
    for (const Case& s : kCases) {
      check(s, isa, {}, false);
      check(s, isa, {}, true);
    }
  }
}

TEST(GemmF32, Epilogues) {
  const std::vector<float> bias = random_floats(200, 3);
  const std::vector<float> residual = random_floats(40000, 4);
  for (const Isa isa : usable_isas()) {
    for (int act = 0; act <= static_cast<int>(Activation::leaky); ++act) {
      for (const bool before : {false, true}) {
        for (const bool with_residual : {false, true}) {
          Epilogue e;
          e.bias = bias.data();
          e.residual = with_residual ? residual.data() : nullptr;
          e.act = static_cast<Activation>(act);
          e.lo = -0.5f;
          e.hi = 1.25f;
          e.act_before_residual = before;
          for (const Case& s : {Case{5, 20, 37, 1}, Case{31, 12, 150}}) check(s, isa, e, false);
        }
      }
    }
  }
}

TEST(GemmF32, BitsDoNotDependOnThreadsOrRows) {
  for (const Isa isa : usable_isas()) {
    Epilogue e;
    e.act = Activation::gelu_erf;
    for (const Case& s : {Case{61, 1100, 200}, Case{61, 96, 64}, Case{61, 1024, 33}, Case{61, 300, 1100}}) {
      const std::vector<float> whole = run(s, isa, 1, e, false);
      for (const int threads : {2, 3, 4}) {
        const std::vector<float> other = run(s, isa, threads, e, false);
        ASSERT_EQ(0, std::memcmp(whole.data(), other.data(), whole.size() * sizeof(float)));
      }
      for (const int64_t first : {0, 1, 13, 30}) {
        for (const int64_t rows : {1, 2, 5, 14, 31}) {
          const std::vector<float> part = run({rows, s.k, s.n, 0, first}, isa, 1, e, false);
          ASSERT_EQ(0, std::memcmp(whole.data() + first * s.n, part.data(), part.size() * sizeof(float)))
              << to_string(isa) << " rows " << first << " + " << rows;
        }
      }
    }
  }
}

TEST(GemmF32, BatchedReadsHeadsWhereTheyLie) {
  // Attention scores and context over [batch, tokens, heads, d] without a transpose.
  const int64_t batch = 2, tokens = 37, heads = 3, d = 20;
  const int64_t row = heads * d;
  const std::vector<float> q = random_floats(batch * tokens * row, 5);
  const std::vector<float> k = random_floats(batch * tokens * row, 6);
  for (const Isa isa : usable_isas()) {
    for (const bool transposed : {true, false}) {
      BatchedGemmArgs g;
      g.outer = batch;
      g.inner = heads;
      g.m = tokens;
      g.k = transposed ? d : tokens;
      g.n = transposed ? tokens : d;
      const std::vector<float> probabilities = random_floats(batch * heads * tokens * tokens, 7);
      g.a = transposed ? q.data() : probabilities.data();
      g.lda = transposed ? row : tokens;
      g.a_outer = transposed ? tokens * row : heads * tokens * tokens;
      g.a_inner = transposed ? d : tokens * tokens;
      g.b = k.data();
      g.ldb = row;
      g.b_outer = tokens * row;
      g.b_inner = d;
      g.b_transposed = transposed;
      g.ldc = transposed ? tokens : row;
      g.c_outer = transposed ? heads * tokens * tokens : tokens * row;
      g.c_inner = transposed ? tokens * tokens : d;
      g.alpha = 0.25f;
      std::vector<float> first;
      for (const int threads : {1, 4}) {
        std::vector<float> c(
            static_cast<size_t>(batch * (transposed ? heads * tokens * tokens : tokens * row)), 0.0f);
        g.c = c.data();
        std::vector<char> workspace(gemm_batched_workspace_bytes(g.k, g.n, threads));
        base::ThreadPool pool(threads);
        gemm_batched(g, workspace.data(), pool, isa);
        for (int64_t i = 0; i < batch * heads * g.m * g.n; ++i) {
          const int64_t col = i % g.n, r = i / g.n % g.m, h = i / g.n / g.m % heads,
                        o = i / g.n / g.m / heads;
          double sum = 0;
          for (int64_t x = 0; x < g.k; ++x) {
            sum += double{g.a[o * g.a_outer + h * g.a_inner + r * g.lda + x]} *
                   g.b[o * g.b_outer + h * g.b_inner + (transposed ? col * g.ldb + x : x * g.ldb + col)];
          }
          ASSERT_NEAR(c[static_cast<size_t>(o * g.c_outer + h * g.c_inner + r * g.ldc + col)], 0.25 * sum,
                      1e-5);
        }
        if (first.empty()) first = c;
        ASSERT_EQ(first, c);
      }
    }
  }
}

/// Element (k, n) of a packed operand [panels][k][panel]; the last panel is one vector wide if that holds its
/// columns.
float packed_element(const PackedMatrix& packed, int64_t k, int64_t n, int panel, int width) {
  const int64_t first = n / panel * panel;
  const int64_t columns = std::min<int64_t>(panel, packed.n - first) > width ? panel : width;
  return packed.data[first * packed.k + k * columns + n - first];
}

TEST(PackB, PutsEachElementInItsPanelWhoeverPacks) {
  for (const auto& [k, n] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 7}, {70, 33}, {131, 500}, {64, 96}}) {
    for (const bool transposed : {false, true}) {
      const int64_t ld = (transposed ? k : n) + 3;
      const std::vector<float> b = random_floats((transposed ? n : k) * ld, 5);
      for (const Isa isa : usable_isas()) {
        const DenseKernels& kernels = dense_kernels(isa);
        std::vector<char> alone(packed_b_bytes(k, n, isa), 'x'), shared = alone;
        base::ThreadPool pool(3);
        const MatrixB matrix{b.data(), k, n, ld, transposed};
        const PackedMatrix one = pack_b(matrix, alone.data(), isa),
                           team = pack_b(matrix, shared.data(), pool, isa);
        const int64_t padded = (n + kernels.width - 1) / kernels.width * kernels.width;
        for (int64_t i = 0; i < k; ++i) {
          for (int64_t j = 0; j < padded; ++j) {
            const float want = j >= n ? 0.0f : b[static_cast<size_t>(transposed ? j * ld + i : i * ld + j)];
            ASSERT_EQ(packed_element(one, i, j, kernels.panel, kernels.width), want) << k << " x " << n;
            ASSERT_EQ(packed_element(team, i, j, kernels.panel, kernels.width), want) << k << " x " << n;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::cpu
