// Tests every form of channels-last convolution against double loops over random shapes: all levels, the same
// bits for any team and any batch mates.
#include "backend/cpu/conv_forms/conv_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/conv/conv_inside.h"
#include "backend/cpu/conv/depthwise_nhwc.h"
#include "backend/cpu/conv/grouped_nhwc.h"
#include "backend/cpu/conv_forms/depthwise_lines.h"
#include "backend/cpu/conv_forms/narrow_nhwc.h"
#include "backend/cpu/conv_forms/winograd_groups.h"
#include "backend/cpu/conv_forms/winograd_lines.h"
#include "backend/cpu/conv/winograd_nhwc.h"
#include "backend/cpu/simd/simd_level.h"
#include "backend/cpu/dense/random_floats.h"
#include "backend/cpu/conv_forms/shape_text.h"

namespace trireme::cpu {
namespace {

struct FloatProblem {
  ConvShape s;
  std::vector<float> x, w, bias, residual;
  int64_t outputs() const { return s.n * s.out_h() * s.out_w() * s.oc; }
};

FloatProblem float_problem(const ConvShape& s) {
  return {s, random_floats(s.n * s.h * s.w * s.c, 1), random_floats(s.oc * s.c / s.groups * s.kh * s.kw, 2),
          random_floats(s.oc, 3), random_floats(s.n * s.out_h() * s.out_w() * s.oc, 4)};
}

/// bias + the taps inside the image, in double; weights [oc, c / groups, kh, kw], x and result nhwc.
std::vector<double> exact_sums(const FloatProblem& p) {
  const ConvShape& s = p.s;
  const int64_t oh = s.out_h(), ow = s.out_w(), cg = s.c / s.groups, og = s.oc / s.groups;
  std::vector<double> y(static_cast<size_t>(p.outputs()));
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i), o = at % s.oc, q = at / s.oc % ow;
    const int64_t row = at / s.oc / ow % oh, n = at / s.oc / ow / oh;
    y[i] = p.bias[static_cast<size_t>(o)];
    for (int64_t a = 0; a < s.kh; ++a) {
      for (int64_t b = 0; b < s.kw; ++b) {
        const int64_t ih = row * s.stride_h - s.pad_top + a * s.dilation_h;
        const int64_t iw = q * s.stride_w - s.pad_left + b * s.dilation_w;
        if (ih < 0 || ih >= s.h || iw < 0 || iw >= s.w) continue;
        for (int64_t c = 0; c < cg; ++c) {
          y[i] += double{p.x[static_cast<size_t>(((n * s.h + ih) * s.w + iw) * s.c + o / og * cg + c)]} *
                  p.w[static_cast<size_t>(((o * cg + c) * s.kh + a) * s.kw + b)];
        }
      }
    }
  }
  return y;
}

using Form = std::function<std::vector<float>(const FloatProblem&, const Epilogue&, int threads)>;

/// Outputs of a form that asks for `packed` and `space` bytes.
template <class Run>
std::vector<float> outputs_of(const FloatProblem& p, size_t packed, size_t space, int threads,
                              const Run& run) {
  std::vector<char> weights(packed), workspace(space, char{-1});
  std::vector<float> y(static_cast<size_t>(p.outputs()), NAN);
  base::ThreadPool pool(threads);
  run(weights.data(), workspace.data(), y.data(), pool);
  return y;
}

std::vector<float> implicit(const FloatProblem& p, const Epilogue& e, int threads) {
  const size_t space = conv2d_workspace_bytes(p.s, ImageLayout::nhwc, threads);
  return outputs_of(p, packed_conv_bytes(p.s), space, threads,
                    [&](void* packed, void* memory, float* y, auto& pool) {
                      const PackedConv weights = pack_conv(p.s, p.w.data(), packed);
                      conv2d_nhwc({p.s, p.x.data(), ImageLayout::nhwc, weights, y, e}, memory, pool);
                    });
}

std::vector<float> grouped(const FloatProblem& p, const Epilogue& e, int threads) {
  const size_t space = grouped_workspace_bytes(p.s, threads);
  return outputs_of(
      p, packed_grouped_bytes(p.s), space, threads, [&](void* packed, void* memory, float* y, auto& pool) {
        grouped_nhwc({p.s, p.x.data(), pack_grouped(p.s, p.w.data(), packed), y, e}, memory, pool);
      });
}

std::vector<float> narrow(const FloatProblem& p, const Epilogue& e, int threads) {
  return outputs_of(p, packed_narrow_bytes(p.s), 0, threads, [&](void* packed, void*, float* y, auto& pool) {
    narrow_nhwc({p.s, p.x.data(), pack_narrow(p.s, p.w.data(), packed), y, e}, pool);
  });
}

std::vector<float> depthwise(const FloatProblem& p, const Epilogue& e, int threads) {
  return outputs_of(p, p.w.size() * sizeof(float), 0, threads,
                    [&](void* packed, void*, float* y, auto& pool) {
                      pack_depthwise(p.s, p.w.data(), static_cast<float*>(packed));
                      depthwise_nhwc({p.s, p.x.data(), static_cast<float*>(packed), y, e}, pool);
                    });
}

std::vector<float> depthwise_lines(const FloatProblem& p, const Epilogue& e, int threads) {
  const size_t space = depthwise_lines_workspace_bytes(p.s, threads);
  return outputs_of(p, packed_depthwise_lines_bytes(p.s), space, threads,
                    [&](void* packed, void* memory, float* y, auto& pool) {
                      const PackedDepthwiseLines weights = pack_depthwise_lines(p.s, p.w.data(), packed);
                      depthwise_lines_nhwc({p.s, p.x.data(), weights, y, e}, memory, pool);
                    });
}

std::vector<float> winograd(const FloatProblem& p, const Epilogue& e, int threads) {
  const WinogradTile tile = winograd_tile(p.s);
  const size_t space = winograd_workspace_bytes(p.s, tile, threads);
  return outputs_of(p, packed_winograd_bytes(p.s, tile), space, threads,
                    [&](void* packed, void* memory, float* y, auto& pool) {
                      const PackedWinograd weights = pack_winograd(p.s, p.w.data(), tile, packed);
                      winograd_nhwc({p.s, p.x.data(), weights, y, e}, memory, pool);
                    });
}

std::vector<float> winograd_groups(const FloatProblem& p, const Epilogue& e, int threads) {
  const size_t space = winograd_groups_workspace_bytes(p.s, threads);
  return outputs_of(p, packed_winograd_groups_bytes(p.s), space, threads,
                    [&](void* packed, void* memory, float* y, auto& pool) {
                      const auto weights = pack_winograd_groups(p.s, p.w.data(), packed);
                      winograd_groups_nhwc({p.s, p.x.data(), weights.data(), y, e}, memory, pool);
                    });
}

std::vector<float> winograd_lines(const FloatProblem& p, const Epilogue& e, int threads) {
  const size_t space = winograd_lines_workspace_bytes(p.s, threads);
  return outputs_of(p, packed_winograd_lines_bytes(p.s), space, threads,
                    [&](void* packed, void* memory, float* y, auto& pool) {
                      const auto weights = pack_winograd_lines(p.s, p.w.data(), packed, pool);
                      winograd_lines_nhwc({p.s, p.x.data(), weights, y, e}, memory, pool);
                    });
}

struct Named {
  std::string name;
  Form run;
  double rounding = 1;
};

std::vector<Named> forms_of(const ConvShape& s) {
  std::vector<Named> forms = {{"implicit", implicit}};
  if (conv_is_depthwise(s)) forms.push_back({"depthwise", depthwise});
  if (depthwise_lines_fits(s)) forms.push_back({"depthwise_lines", depthwise_lines});
  if (grouped_fits(s)) forms.push_back({"grouped", grouped});
  if (narrow_fits(s)) forms.push_back({"narrow", narrow});
  if (winograd_fits(s)) forms.push_back({"winograd", winograd, 30});
  if (winograd_groups_fits(s)) forms.push_back({"winograd_groups", winograd_groups, 30});
  if (winograd_lines_fits(s)) forms.push_back({"winograd_lines", winograd_lines, 30});
  return forms;
}

/// A clamp, or a curve that forms apply after their sums.
double activated(double x, Activation act) {
  return act == Activation::sigmoid ? 1 / (1 + std::exp(-x)) : std::max(x, 0.0);
}

/// Every form of the shape at the level that runs now: right, and the same bits for a team.
void check_forms(const ConvShape& s, const Epilogue& how) {
  const FloatProblem p = float_problem(s);
  const std::vector<double> want = exact_sums(p);
  Epilogue e = how;
  e.bias = p.bias.data();
  e.residual = p.residual.data();
  const double terms = static_cast<double>(s.kh * s.kw * s.c / s.groups);
  for (const Named& form : forms_of(s)) {
    const std::vector<float> y = form.run(p, e, 1);
    const double most = form.rounding * (2e-7 * terms + 1e-6);
    for (size_t i = 0; i < y.size(); ++i) {
      const double added = e.act_before_residual ? activated(want[i], e.act) + p.residual[i]
                                                 : activated(want[i] + p.residual[i], e.act);
      ASSERT_NEAR(y[i], added, most) << form.name << " output " << i << " of " << text_of(s);
    }
    ASSERT_EQ(y, form.run(p, e, 3)) << form.name << ": a team changes bits of " << text_of(s);
  }
}

ConvShape random_form_shape(std::mt19937& generator) {
  const auto pick = [&](std::initializer_list<int> from) {
    return *(from.begin() + generator() % from.size());
  };
  for (;;) {
    ConvShape s;
    s.n = pick({1, 2, 3});
    s.h = pick({1, 2, 5, 7, 9, 14, 17}), s.w = pick({1, 3, 7, 8, 13, 15, 19, 29});
    s.groups = pick({1, 1, 2, 3, 5, 8, 17});
    s.c = s.groups * pick({1, 1, 2, 3, 4, 5, 8, 12, 15, 16, 17, 33});
    s.oc = s.groups * pick({1, 1, 2, 3, 4, 5, 8, 12, 15, 16, 17, 33, 40});
    s.kh = pick({1, 2, 3, 3, 3, 5}), s.kw = pick({1, 2, 3, 3, 3, 4, 5, 7});
    if (generator() % 4 == 0) {  // a line
      s.groups = 1;
      (generator() % 2 == 0 ? s.kh : s.kw) = 1;
    }
    if (generator() % 8 == 0) {  // one channel a group: tall kernels, and more vectors than a block has
      s.c = s.oc = s.groups = pick({1, 7, 12, 16, 36, 40, 60, 70, 130});
      s.kh = pick({1, 3, 5, 7, 9}), s.kw = pick({1, 3, 6, 7, 9, 11});
    }
    s.stride_h = pick({1, 1, 2, 3}), s.stride_w = pick({1, 1, 1, 2, 2, 3, 6});
    s.dilation_h = pick({1, 1, 2, 7}), s.dilation_w = pick({1, 1, 2, 3});
    s.pad_top = pick({0, 1, 1, 2, 6}), s.pad_left = pick({0, 1, 1, 3, 9});
    s.pad_bottom = pick({0, 1, 2, 5}), s.pad_right = pick({0, 1, 2, 8});
    const bool fits = s.h + s.pad_top + s.pad_bottom > s.dilation_h * (s.kh - 1) &&
                      s.w + s.pad_left + s.pad_right > s.dilation_w * (s.kw - 1);
    if (fits && s.flop() < 6000000) return s;
  }
}

TEST(ConvForms, RandomShapesAgreeWithDoubleLoops) {
  std::mt19937 generator(11);
  for (int i = 0; i < 550; ++i) {
    const ConvShape s = random_form_shape(generator);
    Epilogue e;
    e.act = i % 4 < 2 ? Activation::relu : Activation::sigmoid;
    e.act_before_residual = i % 2 != 0;
    for (const SimdLevel& level : simd_levels()) {
      simd_force(level);
      ASSERT_NO_FATAL_FAILURE(check_forms(s, e)) << level.name;
    }
    simd_unforce();
  }
}

/// Three by three, "same" padding, side x side + 1.
ConvShape same(int64_t side, int64_t c, int64_t oc, int64_t groups, int dilation) {
  ConvShape s;
  s.n = 2;
  s.h = side, s.w = side + 1;
  s.c = c, s.oc = oc, s.groups = groups;
  s.kh = s.kw = 3;
  s.dilation_h = s.dilation_w = dilation;
  s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = dilation;
  return s;
}

/// The same with strides of 2.
ConvShape halved(ConvShape s) {
  s.stride_h = s.stride_w = 2;
  return s;
}

/// Taps along one axis, "same" padding.
ConvShape line(int kh, int kw, int64_t c, int64_t oc, int dilation) {
  ConvShape s;
  s.n = 2;
  s.h = kh > 1 ? 23 : 6, s.w = kw > 1 ? 29 : 5;
  s.c = c, s.oc = oc;
  s.kh = kh, s.kw = kw;
  s.dilation_h = kh > 1 ? dilation : 1, s.dilation_w = kw > 1 ? dilation : 1;
  s.pad_top = s.dilation_h * (kh - 1) / 2, s.pad_bottom = s.dilation_h * (kh - 1) - s.pad_top;
  s.pad_left = s.dilation_w * (kw - 1) / 2, s.pad_right = s.dilation_w * (kw - 1) - s.pad_left;
  return s;
}

std::vector<ConvShape> named_shapes() {
  return {same(15, 64, 64, 16, 1),         halved(same(15, 48, 48, 6, 1)),
          same(14, 64, 64, 4, 1),          same(14, 96, 96, 4, 1),
          halved(same(9, 168, 168, 3, 1)), same(14, 36, 72, 36, 1),
          same(13, 40, 36, 1, 6),          same(14, 33, 20, 1, 12),
          same(9, 32, 17, 1, 12),          same(14, 64, 40, 1, 2),
          same(12, 48, 18, 1, 3),          same(12, 35, 3, 1, 5),
          halved(same(20, 70, 1, 1, 1)),   halved(same(11, 21, 21, 21, 2)),
          same(8, 32, 32, 32, 3),          same(16, 24, 24, 3, 2),
          same(14, 96, 64, 2, 1),          line(3, 1, 40, 33, 1),
          line(1, 3, 64, 48, 2),           line(1, 7, 33, 35, 1),
          line(7, 1, 32, 32, 3),           line(1, 4, 36, 70, 1),
          line(5, 1, 48, 17, 1),           line(1, 6, 35, 32, 1),
          line(1, 8, 32, 40, 1),           line(9, 1, 32, 33, 2)};
}

TEST(ConvForms, NamedShapesAgreeWithDoubleLoopsAtEveryLevel) {
  for (const ConvShape& s : named_shapes()) {
    for (const SimdLevel& level : simd_levels()) {
      simd_force(level);
      Epilogue e;
      e.act = Activation::relu;
      ASSERT_NO_FATAL_FAILURE(check_forms(s, e)) << level.name;
    }
    simd_unforce();
  }
}

TEST(ConvForms, CurvedActivationsInEitherOrder) {
  for (const ConvShape& s : named_shapes()) {
    const FloatProblem p = float_problem(s);
    const std::vector<double> want = exact_sums(p);
    for (const bool first : {false, true}) {
      Epilogue e = {p.bias.data(), p.residual.data(), Activation::silu};
      e.act_before_residual = first;
      const auto silu = [](double v) { return v / (1 + std::exp(-v)); };
      for (const Named& form : forms_of(s)) {
        const std::vector<float> y = form.run(p, e, 2);
        for (size_t i = 0; i < y.size(); ++i) {
          const double v = first ? silu(want[i]) + p.residual[i] : silu(want[i] + p.residual[i]);
          ASSERT_NEAR(y[i], v, 1e-3) << form.name << " " << text_of(s);
        }
      }
    }
  }
}

TEST(ConvForms, AnImageDoesNotDependOnItsBatchMates) {
  for (const ConvShape& s : named_shapes()) {
    const FloatProblem both = float_problem(s);
    FloatProblem second = both;
    second.s.n = 1;
    second.x.assign(both.x.begin() + static_cast<int64_t>(both.x.size() / 2), both.x.end());
    second.residual.resize(both.residual.size() / 2);
    for (const Named& form : forms_of(s)) {
      const std::vector<float> all = form.run(both, {}, 3), one = form.run(second, {}, 1);
      EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + static_cast<int64_t>(one.size())))
          << form.name << " " << text_of(s);
    }
  }
}

/// Taps that are left out are not multiplied: an infinite weight outside the image gives no NaN.
TEST(ConvForms, PaddingIsLeftOutOfDilatedConvolutions) {
  const ConvShape s = same(8, 32, 5, 1, 12);
  ASSERT_TRUE(conv_skips_padding(s));
  EXPECT_FALSE(conv_skips_padding(same(28, 32, 5, 1, 2)));
  FloatProblem p = float_problem(s);
  for (size_t i = 0; i < p.w.size(); ++i) {
    if (i % 9 != 4) p.w[i] = std::numeric_limits<float>::infinity();  // all but the middle tap
  }
  for (const float y : implicit(p, {}, 2)) ASSERT_TRUE(std::isfinite(y));
}

/// Copies of all lines under a window would hold hundreds of megabytes for an image of one.
TEST(ConvForms, LinesFarBeyondTheImageAreNotCopied) {
  for (const int64_t groups : {8, 32}) {
    for (const int dilation : {1, 24, 1000}) {
      const ConvShape s = same(64, 32, 32, groups, dilation);
      EXPECT_EQ(grouped_fits(s), dilation < 1000) << text_of(s);
      EXPECT_EQ(depthwise_lines_fits(s), dilation < 1000 && groups == 32) << text_of(s);
    }
  }
  ConvShape audio{.h = 1, .w = 200000, .c = 32, .oc = 32, .kw = 4, .pad_left = 3, .groups = 32};
  EXPECT_TRUE(depthwise_lines_fits(audio));  // a long line is no larger than the image
  audio.w = 9;
  audio.dilation_w = 1 << 20, audio.pad_left = audio.pad_right = 3 << 19;
  EXPECT_FALSE(depthwise_lines_fits(audio));
}

TEST(ConvForms, GroupsWithoutChannelsHaveNoForm) {
  EXPECT_FALSE(grouped_fits({.h = 8, .w = 8, .c = 4, .oc = 0, .kh = 3, .kw = 3, .groups = 2}));
  EXPECT_FALSE(grouped_fits({.h = 8, .w = 8, .c = 0, .oc = 4, .kh = 3, .kw = 3, .groups = 2}));
}

TEST(ConvForms, PackedWeightsStayWithinTheirFactor) {
  std::mt19937 generator(5);
  for (int i = 0; i < 200; ++i) {
    const ConvShape s = random_form_shape(generator);
    const size_t bytes = static_cast<size_t>(s.oc * s.c / s.groups * s.kh * s.kw) * sizeof(float);
    if (grouped_fits(s)) {
      EXPECT_LE(packed_grouped_bytes(s), 8 * bytes + 64) << text_of(s);
    }
    if (narrow_fits(s)) {
      EXPECT_LE(packed_narrow_bytes(s), 2 * bytes + 64) << text_of(s);
    }
  }
}

TEST(ConvForms, TheChoiceLooksAtOneImage) {
  std::mt19937 generator(6);
  for (int i = 0; i < 200; ++i) {
    ConvShape s = random_form_shape(generator);
    s.n = 1;
    const ConvForm one = conv_form(s, ImageLayout::nhwc);
    s.n = 64;
    EXPECT_EQ(one, conv_form(s, ImageLayout::nhwc));
  }
}

}  // namespace
}  // namespace trireme::cpu
