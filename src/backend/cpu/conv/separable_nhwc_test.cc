// Chains of pointwise, depthwise and pointwise convolutions give the bits of the three done one after
// another.
#include "backend/cpu/conv/separable_nhwc.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/dense/random_floats.h"

namespace trireme::cpu {
namespace {

using Floats = std::vector<float>;

/// n images of h x (h + w_more), "same" padding; in -> c -> out channels, in 0: nothing expands.
struct Chain {
  int64_t n, h, w_more, in, c, out;
  int k, stride;
  Activation act = Activation::relu;
  bool act_before_residual = false;
};

std::vector<Chain> chains() {
  return {{1, 122, 0, 16, 96, 24, 3, 2},
          {1, 61, 0, 24, 144, 24, 3, 1},
          {1, 31, 0, 32, 192, 32, 3, 1},
          {1, 16, 0, 64, 384, 96, 3, 1, Activation::clip},
          {1, 8, 0, 160, 960, 160, 3, 1},
          {3, 9, 2, 7, 40, 5, 5, 2, Activation::silu},
          {5, 8, 1, 40, 136, 33, 3, 1, Activation::hardswish, true},
          {1, 17, 3, 0, 35, 70, 3, 1},
          {2, 30, 0, 0, 32, 16, 3, 2},
          {1, 4, 0, 3, 130, 17, 3, 1, Activation::silu, true},
          {1, 3, 0, 8, 33, 4, 3, 3},
          {1, 1, 0, 8, 256, 40, 3, 1},
          {7, 2, 0, 8, 24, 40, 5, 1}};
}

SeparableShape shape_of(const Chain& k) {
  SeparableShape s;
  s.in = k.in > 0 ? k.in : k.c;
  s.out = k.out;
  s.expands = k.in > 0;
  ConvShape& d = s.depthwise;
  d.n = k.n, d.h = k.h, d.w = k.h + k.w_more;
  d.c = d.oc = d.groups = k.c;
  d.kh = d.kw = k.k;
  d.stride_h = d.stride_w = k.stride;
  d.pad_top = d.pad_left = d.pad_bottom = d.pad_right = k.k / 2;
  return s;
}

/// Operands of a chain, and its result by the three kernels it replaces.
struct Trial {
  Trial(const Chain& chain, Isa level) : shape(shape_of(chain)), isa(level) {
    const ConvShape& d = shape.depthwise;
    const int64_t pixels = d.n * d.out_h() * d.out_w();
    x = random_floats(d.n * d.h * d.w * shape.in, 1);
    expand = random_floats(shape.in * d.c, 2), taps = random_floats(d.kh * d.kw * d.c, 3);
    project = random_floats(d.c * shape.out, 4), residual = random_floats(pixels * shape.out, 5);
    bias = random_floats(std::max(d.c, shape.out), 6);
    packed_expand.resize(packed_b_bytes(shape.in, d.c, isa) + 64);
    packed_project.resize(packed_b_bytes(d.c, shape.out, isa) + 64);
    a.shape = shape;
    a.x = x.data();
    a.expand = pack_b({expand.data(), shape.in, d.c, d.c, false}, packed_expand.data(), isa);
    a.project = pack_b({project.data(), d.c, shape.out, shape.out, false}, packed_project.data(), isa);
    a.depthwise = taps.data();
    a.expand_end.bias = a.depthwise_end.bias = a.end.bias = bias.data();
    a.expand_end.act = a.depthwise_end.act = a.end.act = chain.act;
    a.end.residual = residual.data();
    a.end.act_before_residual = chain.act_before_residual;
  }

  Floats product(const float* from, int64_t m, const PackedMatrix& b, const Epilogue& end,
                 base::ThreadPool& pool) {
    Floats out(static_cast<size_t>(m * b.n));
    std::vector<char> workspace(gemm_workspace_bytes(m, b.k, b.n, pool.size()) + 64);
    gemm({.m = m, .a = from, .lda = b.k, .b = b, .c = out.data(), .ldc = b.n, .epilogue = end},
         workspace.data(), pool);
    return out;
  }

  Floats one_by_one() {
    base::ThreadPool pool(1);
    const ConvShape& d = shape.depthwise;
    Floats before = x;
    if (shape.expands) before = product(x.data(), d.n * d.h * d.w, a.expand, a.expand_end, pool);
    Floats behind(static_cast<size_t>(d.n * d.out_h() * d.out_w() * d.c));
    depthwise_nhwc({.shape = d,
                    .x = before.data(),
                    .weights = taps.data(),
                    .y = behind.data(),
                    .epilogue = a.depthwise_end,
                    .isa = isa},
                   pool);
    return product(behind.data(), d.n * d.out_h() * d.out_w(), a.project, a.end, pool);
  }

  Floats fused(int threads) {
    base::ThreadPool pool(threads);
    const ConvShape& d = shape.depthwise;
    // NaN shows what is read before it is written; the guard behind, what is written past the end.
    const size_t bytes = separable_workspace_bytes(shape, threads);
    std::vector<char> workspace(bytes + 64, static_cast<char>(0xff));
    Floats y(static_cast<size_t>(d.n * d.out_h() * d.out_w() * shape.out), std::nanf(""));
    a.y = y.data();
    separable_nhwc(a, workspace.data(), pool);
    for (size_t i = bytes; i < workspace.size(); ++i) EXPECT_EQ(workspace[i], static_cast<char>(0xff));
    return y;
  }

  SeparableShape shape;
  Isa isa;
  Floats x, expand, taps, project, residual, bias;
  std::vector<char> packed_expand, packed_project;
  SeparableArgs a;
};

TEST(Separable, EqualsTheThreeConvolutionsAtEveryLevelAndTeam) {
  for (const Isa isa : usable_isas()) {
    int index = 0;
    for (const Chain& chain : chains()) {
      Trial trial(chain, isa);
      const Floats want = trial.one_by_one();
      for (int threads : {1, 2, 3, 4, 7}) {
        const Floats got = trial.fused(threads);
        ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
            << "chain " << index << ", " << to_string(isa) << ", " << threads << " threads";
      }
      ++index;
    }
  }
}

TEST(Separable, ResultsDoNotDependOnBatchMates) {
  Chain chain{6, 14, 0, 16, 96, 24, 3, 1};
  Trial six(chain, best_isa());
  const Floats all = six.fused(4);
  chain.n = 1;
  Trial one(chain, best_isa());
  const Floats first = one.fused(1);
  EXPECT_EQ(std::memcmp(all.data(), first.data(), first.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace trireme::cpu
