// Gradients of grouped and depthwise convolutions against double loops over random shapes: all levels, the
// same bits for any team.
#include "backend/cpu/conv_forms/grouped_grad.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/conv/depthwise_grad.h"
#include "backend/cpu/simd/simd_level.h"
#include "backend/cpu/dense/random_floats.h"
#include "backend/cpu/conv_forms/shape_text.h"

namespace trireme::cpu {
namespace {

struct Wanted {
  std::vector<double> dx, dw;
};

/// Both gradients by the definition: every product of the forward pass, walked backwards.
Wanted wanted(const ConvShape& s, const std::vector<float>& x, const std::vector<float>& w,
              const std::vector<float>& dy) {
  const int64_t oh = s.out_h(), ow = s.out_w(), cg = s.c / s.groups, og = s.oc / s.groups;
  Wanted out{std::vector<double>(x.size()), std::vector<double>(w.size())};
  for (size_t i = 0; i < dy.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i), o = at % s.oc, q = at / s.oc % ow;
    const int64_t row = at / s.oc / ow % oh, n = at / s.oc / ow / oh;
    for (int64_t a = 0; a < s.kh; ++a) {
      for (int64_t b = 0; b < s.kw; ++b) {
        const int64_t ih = row * s.stride_h - s.pad_top + a * s.dilation_h;
        const int64_t iw = q * s.stride_w - s.pad_left + b * s.dilation_w;
        if (ih < 0 || ih >= s.h || iw < 0 || iw >= s.w) continue;
        for (int64_t c = 0; c < cg; ++c) {
          const auto ix = static_cast<size_t>(((n * s.h + ih) * s.w + iw) * s.c + o / og * cg + c);
          const auto iv = static_cast<size_t>(((o * cg + c) * s.kh + a) * s.kw + b);
          out.dx[ix] += double{dy[i]} * w[iv];
          out.dw[iv] += double{dy[i]} * x[ix];
        }
      }
    }
  }
  return out;
}

void expect_near(const std::vector<float>& got, const std::vector<double>& want, const std::string& what) {
  double largest = 1;
  for (const double v : want) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 1e-5 * largest) << what << " at " << i;
}

/// How many of the four forms took the shape.
int check_gradients(const ConvShape& s) {
  const std::vector<float> x = random_floats(s.n * s.h * s.w * s.c, 1);
  const std::vector<float> w = random_floats(s.oc * s.c / s.groups * s.kh * s.kw, 2);
  const std::vector<float> dy = random_floats(s.n * s.out_h() * s.out_w() * s.oc, 3);
  const Wanted want = wanted(s, x, w, dy);
  int took = 0;
  const auto run_x = [&](auto bytes, auto run, const char* name) {
    std::vector<float> alone;
    for (const int threads : {1, 3}) {
      base::ThreadPool pool(threads);
      std::vector<char> space(bytes(s, threads), char{-1});
      std::vector<float> dx(x.size(), NAN);
      run({s, dy.data(), w.data(), dx.data()}, space.data(), pool);
      expect_near(dx, want.dx, name + text_of(s));
      if (threads == 1) alone = dx;
      ASSERT_EQ(alone, dx) << "a team changes bits of " << text_of(s);
    }
    ++took;
  };
  const auto run_w = [&](auto bytes, auto run, const char* name) {
    std::vector<float> alone;
    for (const int threads : {1, 3}) {
      base::ThreadPool pool(threads);
      std::vector<char> space(bytes(s, threads), char{-1});
      std::vector<float> dw(w.size(), NAN);
      run({s, x.data(), ImageLayout::nhwc, dy.data(), dw.data()}, space.data(), pool);
      expect_near(dw, want.dw, name + text_of(s));
      if (threads == 1) alone = dw;
      ASSERT_EQ(alone, dw) << "a team changes bits of " << text_of(s);
    }
    ++took;
  };
  if (grouped_grad_x_pays(s)) run_x(grouped_grad_x_bytes, grouped_grad_x, "grouped dx ");
  if (grouped_grad_w_pays(s)) run_w(grouped_grad_w_bytes, grouped_grad_w, "grouped dw ");
  if (depthwise_grad_fits(s)) {
    run_x(depthwise_grad_x_bytes, depthwise_grad_x, "depthwise dx ");
    run_w(depthwise_grad_w_bytes, depthwise_grad_w, "depthwise dw ");
  }
  return took;
}

ConvShape random_grad_shape(std::mt19937& generator) {
  const auto pick = [&](std::initializer_list<int> from) {
    return *(from.begin() + generator() % from.size());
  };
  for (;;) {
    ConvShape s;
    s.n = pick({1, 2, 5});
    s.h = pick({1, 2, 5, 7, 9, 14}), s.w = pick({1, 3, 7, 8, 13, 15, 19});
    s.groups = pick({2, 3, 5, 8, 17});
    const bool is_depthwise = pick({0, 0, 0, 1}) == 1;
    s.c = s.groups * (is_depthwise ? 1 : pick({1, 2, 3, 4, 6, 8, 12, 15, 16, 17, 33}));
    s.oc = s.groups * (is_depthwise ? 1 : pick({1, 2, 3, 4, 6, 8, 12, 15, 16, 17, 33, 40}));
    s.kh = pick({1, 2, 3, 3, 3, 5}), s.kw = pick({1, 2, 3, 3, 3, 4, 5, 7});
    s.stride_h = pick({1, 1, 2, 3}), s.stride_w = pick({1, 1, 1, 2, 2, 3});
    s.dilation_h = pick({1, 1, 1, 2}), s.dilation_w = pick({1, 1, 1, 2, 3});
    s.pad_top = pick({0, 1, 1, 2}), s.pad_left = pick({0, 1, 1, 3});
    s.pad_bottom = pick({0, 1, 2}), s.pad_right = pick({0, 1, 2});
    const bool fits = s.h + s.pad_top + s.pad_bottom > s.dilation_h * (s.kh - 1) &&
                      s.w + s.pad_left + s.pad_right > s.dilation_w * (s.kw - 1);
    if (fits && s.flop() < 4000000) return s;
  }
}

TEST(GroupedGrad, RandomShapesAgreeWithDoubleLoopsAtEveryLevel) {
  std::mt19937 generator(19);
  int took = 0;
  for (int i = 0; i < 300; ++i) {
    const ConvShape s = random_grad_shape(generator);
    for (const SimdLevel& level : simd_levels()) {
      simd_force(level);
      took += check_gradients(s);
      if (HasFatalFailure()) FAIL() << level.name;
    }
    simd_unforce();
  }
  EXPECT_GE(took, 900);
}

/// The layers of ResNeXt, RegNet and ShuffleNet: none of them is left to a product for each group.
TEST(GroupedGrad, TakesTheLayersOfNetworks) {
  struct Layer {
    int64_t side, channels, groups;
    int kernel, stride;
  };
  for (const Layer& l : {Layer{56, 128, 32, 3, 1}, Layer{56, 256, 32, 3, 2}, Layer{14, 1024, 32, 3, 2},
                         Layer{28, 104, 13, 3, 1}, Layer{14, 208, 26, 3, 2}, Layer{7, 440, 55, 3, 1},
                         Layer{14, 768, 32, 3, 1}}) {
    ConvShape s{
        .n = 8, .h = l.side, .w = l.side, .c = l.channels, .oc = l.channels, .kh = l.kernel, .kw = l.kernel};
    s.groups = l.groups;
    s.stride_h = s.stride_w = l.stride;
    s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = l.kernel / 2;
    EXPECT_TRUE(grouped_grad_x_pays(s)) << text_of(s);
    EXPECT_TRUE(grouped_grad_w_pays(s)) << text_of(s);
  }
}

}  // namespace
}  // namespace trireme::cpu
