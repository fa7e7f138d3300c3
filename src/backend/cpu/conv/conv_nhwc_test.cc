// Tests channels-last convolution, depthwise convolution and pooling against double loops over odd shapes and
// levels.
#include "backend/cpu/conv/conv_nhwc.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/conv/depthwise_nhwc.h"
#include "backend/cpu/conv/pool_nhwc.h"
#include "backend/cpu/dense/gemm_f32.h"
#include "backend/cpu/dense/random_floats.h"

namespace trireme::cpu {
namespace {

/// relu(conv(x) + bias) + residual in double; weights [oc, c / groups, kh, kw], x and result nhwc.
std::vector<double> reference_conv(const ConvShape& s, const std::vector<float>& x,
                                   const std::vector<float>& w, const std::vector<float>& bias,
                                   const std::vector<float>& residual) {
  const int64_t oh = s.out_h(), ow = s.out_w(), cg = s.c / s.groups, og = s.oc / s.groups;
  std::vector<double> y(static_cast<size_t>(s.n * oh * ow * s.oc));
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t o = static_cast<int64_t>(i) % s.oc, q = static_cast<int64_t>(i) / s.oc % ow;
    const int64_t p = static_cast<int64_t>(i) / s.oc / ow % oh, n = static_cast<int64_t>(i) / s.oc / ow / oh;
    double sum = bias[static_cast<size_t>(o)];
    for (int64_t c = 0; c < cg; ++c) {
      for (int64_t a = 0; a < s.kh; ++a) {
        for (int64_t b = 0; b < s.kw; ++b) {
          const int64_t ih = p * s.stride_h - s.pad_top + a * s.dilation_h;
          const int64_t iw = q * s.stride_w - s.pad_left + b * s.dilation_w;
          if (ih < 0 || ih >= s.h || iw < 0 || iw >= s.w) continue;
          sum += double{x[static_cast<size_t>(((n * s.h + ih) * s.w + iw) * s.c + o / og * cg + c)]} *
                 w[static_cast<size_t>(((o * cg + c) * s.kh + a) * s.kw + b)];
        }
      }
    }
    y[i] = std::max(sum, 0.0) + residual[i];
  }
  return y;
}

/// Two images of hw x (hw + 3), "same" padding.
ConvShape nhwc_shape(int64_t hw, int64_t c, int64_t oc, int k, int stride) {
  ConvShape s;
  s.n = 2;
  s.h = hw;
  s.w = hw + 3;
  s.c = c;
  s.oc = oc;
  s.kh = s.kw = k;
  s.stride_h = s.stride_w = stride;
  s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = k / 2;
  return s;
}

std::vector<ConvShape> conv_shapes() {
  std::vector<ConvShape> all = {
      nhwc_shape(9, 3, 32, 3, 2),   nhwc_shape(13, 3, 37, 7, 2),  nhwc_shape(7, 20, 70, 1, 1),
      nhwc_shape(8, 24, 150, 1, 2), nhwc_shape(6, 17, 200, 3, 1), nhwc_shape(7, 64, 40, 3, 1),
      nhwc_shape(5, 4, 9, 5, 1),    nhwc_shape(37, 3, 40, 3, 2),  nhwc_shape(33, 1, 16, 5, 1),
      nhwc_shape(3, 512, 33, 3, 1), nhwc_shape(6, 1024, 20, 1, 1)};
  ConvShape odd = nhwc_shape(11, 18, 27, 3, 1);
  odd.kw = 2;
  odd.dilation_h = 2;
  odd.dilation_w = 3;
  odd.pad_top = 0;
  odd.pad_right = 4;
  odd.stride_w = 2;
  odd.groups = 3;
  all.push_back(odd);
  odd.c = 2;
  odd.oc = 6;
  odd.groups = 1;
  all.push_back(odd);
  // Patches, which planes are read by where they lie: with and without padding, lines of one channel.
  for (const int k : {4, 14, 16, 32}) {
    ConvShape patch = nhwc_shape(int64_t{2} * k + 3, 3, 70, k, k);
    patch.pad_top = patch.pad_left = patch.pad_bottom = patch.pad_right = 0;
    all.push_back(patch);
  }
  ConvShape uneven = nhwc_shape(29, 5, 33, 7, 4);
  uneven.pad_right = 1;
  uneven.dilation_h = 2;
  all.push_back(uneven);
  ConvShape sound = nhwc_shape(1, 1, 48, 1, 5);
  sound.w = 303, sound.kw = 10;
  all.push_back(sound);
  return all;
}

std::vector<float> to_nchw(const ConvShape& s, const std::vector<float>& x) {
  std::vector<float> out(x.size());
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t p = 0; p < s.h * s.w; ++p) {
      for (int64_t c = 0; c < s.c; ++c) {
        out[static_cast<size_t>((n * s.c + c) * s.h * s.w + p)] =
            x[static_cast<size_t>((n * s.h * s.w + p) * s.c + c)];
      }
    }
  }
  return out;
}

TEST(ConvNhwc, AgreesWithDoubleLoops) {
  for (const ConvShape& s : conv_shapes()) {
    const std::vector<float> x = random_floats(s.n * s.h * s.w * s.c, 1);
    const std::vector<float> nchw = to_nchw(s, x);
    const std::vector<float> w = random_floats(s.oc * s.c / s.groups * s.kh * s.kw, 2);
    const std::vector<float> bias = random_floats(s.oc, 3);
    const std::vector<float> residual = random_floats(s.n * s.out_h() * s.out_w() * s.oc, 4);
    const std::vector<double> want = reference_conv(s, x, w, bias, residual);
    for (const Isa isa : usable_isas()) {
      std::vector<char> packed(packed_conv_bytes(s, isa));
      ConvArgs args = {s,       nullptr, ImageLayout::nhwc, pack_conv(s, w.data(), packed.data(), isa),
                       nullptr, {}};
      args.epilogue = {bias.data(), residual.data(), Activation::relu};
      args.epilogue.act_before_residual = true;
      std::vector<float> first_nhwc, first_nchw;
      for (const int threads : {1, 3}) {
        for (const ImageLayout layout : {ImageLayout::nhwc, ImageLayout::nchw}) {
          std::vector<float> y(want.size());
          std::vector<char> workspace(conv2d_workspace_bytes(s, layout, threads));
          base::ThreadPool pool(threads);
          args.weights = pack_conv(s, w.data(), packed.data(), isa, layout);
          args.x = layout == ImageLayout::nhwc ? x.data() : nchw.data();
          args.x_layout = layout;
          args.y = y.data();
          conv2d_nhwc(args, workspace.data(), pool);
          const double bound = 2e-7 * static_cast<double>(s.kh * s.kw * s.c / s.groups) + 1e-6;
          for (size_t i = 0; i < y.size(); ++i) {
            ASSERT_NEAR(y[i], want[i], bound)
                << to_string(isa) << " c=" << s.c << " oc=" << s.oc << " k=" << s.kh;
          }
          // The order of a sum's terms may differ between layouts, never between teams.
          std::vector<float>& first = layout == ImageLayout::nhwc ? first_nhwc : first_nchw;
          if (first.empty()) first = y;
          ASSERT_EQ(first, y);
        }
      }
    }
  }
}

/// Weights with their taps before their channels, by plain loops: what pack_conv packs without such a copy.
std::vector<float> taps_before_channels(const ConvShape& s, const std::vector<float>& w) {
  std::vector<float> out(w.size());
  const int64_t depth = s.c / s.groups, taps = int64_t{s.kh} * s.kw;
  for (int64_t o = 0; o < s.oc; ++o) {
    for (int64_t i = 0; i < depth * taps; ++i)
      out[static_cast<size_t>(o * depth * taps + i % taps * depth + i / taps)] =
          w[static_cast<size_t>(o * depth * taps + i)];
  }
  return out;
}

TEST(PackConv, IsThePackedProductOfTurnedWeightsForAnyTeam) {
  std::vector<ConvShape> shapes = conv_shapes();
  shapes.push_back(nhwc_shape(40, 3, 20, 17, 1));  // more taps than are turned in a cache
  for (const ConvShape& s : shapes) {
    const int64_t depth = s.c / s.groups * s.kh * s.kw, columns = s.oc / s.groups;
    const std::vector<float> w = random_floats(s.oc * depth, 2), turned = taps_before_channels(s, w);
    for (const Isa isa : usable_isas()) {
      for (const int threads : {1, 3}) {
        base::ThreadPool pool(threads);
        std::vector<char> memory(packed_conv_bytes(s, isa)), want(packed_b_bytes(depth, columns, isa));
        const PackedConv packed = pack_conv({s, w.data(), ImageLayout::nhwc, isa}, memory.data(), pool);
        for (int64_t g = 0; g < s.groups; ++g) {
          const PackedMatrix one =
              pack_b({turned.data() + g * columns * depth, depth, columns, depth, true}, want.data(), isa);
          const size_t bytes = packed_b_bytes(depth, columns, isa) - 64;
          ASSERT_EQ(std::memcmp(packed.data + g * packed.group_floats, one.data, bytes), 0)
              << to_string(isa) << " c=" << s.c << " oc=" << s.oc << " k=" << s.kh << " group " << g;
        }
      }
    }
  }
}

TEST(DepthwiseNhwc, AgreesWithDoubleLoops) {
  for (const int k : {1, 2, 3, 5, 7}) {
    for (const int stride : {1, 2}) {
      for (const int64_t c : {1, 5, 16, 37, 64}) {
        for (const int dilation : {1, 2}) {
          ConvShape s = nhwc_shape(9, c, c, k, stride);
          s.groups = c;
          s.dilation_h = s.dilation_w = dilation;
          if (k == 2) s.pad_left = s.pad_bottom = 0;
          const std::vector<float> x = random_floats(s.n * s.h * s.w * c, 1);
          const std::vector<float> w = random_floats(c * k * k, 2);
          const std::vector<float> bias = random_floats(c, 3);
          if (s.out_h() <= 0) continue;
          const std::vector<float> residual = random_floats(s.n * s.out_h() * s.out_w() * c, 4);
          const std::vector<double> want = reference_conv(s, x, w, bias, residual);
          std::vector<float> packed(w.size());
          pack_depthwise(s, w.data(), packed.data());
          for (const Isa isa : usable_isas()) {
            std::vector<float> y(want.size());
            base::ThreadPool pool(2);
            DepthwiseArgs args = {s, x.data(), packed.data(), y.data(), {bias.data(), residual.data()}, isa};
            args.epilogue.act = Activation::relu;
            args.epilogue.act_before_residual = true;
            depthwise_nhwc(args, pool);
            for (size_t i = 0; i < y.size(); ++i)
              ASSERT_NEAR(y[i], want[i], 1e-5) << to_string(isa) << " k=" << k;
          }
        }
      }
    }
  }
}

TEST(PoolNhwc, WindowsAgreeWithDoubleLoops) {
  for (const int64_t c : {1, 19, 32, 150}) {
    for (const bool count_padding : {false, true}) {
      ConvShape s = nhwc_shape(8, c, c, 3, 2);
      const std::vector<float> x = random_floats(s.n * s.h * s.w * c, 1);
      for (const Isa isa : usable_isas()) {
        PoolArgs args = {s, s.out_h(), s.out_w(), x.data(), nullptr, count_padding, isa};
        const size_t count = static_cast<size_t>(s.n * args.out_h * args.out_w * c);
        std::vector<float> highest(count), mean(count);
        base::ThreadPool pool(2);
        args.y = highest.data();
        max_pool_nhwc(args, pool);
        args.y = mean.data();
        std::vector<char> workspace(average_pool_workspace_bytes(args));
        average_pool_nhwc(args, workspace.data(), pool);
        for (size_t i = 0; i < count; ++i) {
          const int64_t at = static_cast<int64_t>(i);
          const int64_t q = at / c % args.out_w, p = at / c / args.out_w % args.out_h,
                        n = at / c / args.out_w / args.out_h;
          double top = -1e9, sum = 0, inside = 0, padded = 0;
          for (int64_t ih = p * 2 - 1; ih < p * 2 + 2; ++ih) {
            for (int64_t iw = q * 2 - 1; iw < q * 2 + 2; ++iw) {
              padded += ih <= s.h && iw <= s.w;
              if (ih < 0 || iw < 0 || ih >= s.h || iw >= s.w) continue;
              const double v = x[static_cast<size_t>(((n * s.h + ih) * s.w + iw) * c + at % c)];
              top = std::max(top, v);
              sum += v;
              ++inside;
            }
          }
          ASSERT_EQ(highest[i], top);
          ASSERT_NEAR(mean[i], sum / (count_padding ? padded : inside), 1e-6);
        }
      }
    }
  }
}

/// Maxima and means of the values inside each window, both in double; a NaN in a window makes both NaN.
struct Pooled {
  std::vector<double> highest, mean;
};

Pooled reference_pool(const ConvShape& s, const std::vector<float>& x) {
  Pooled pooled;
  const int64_t count = s.n * s.out_h() * s.out_w() * s.c;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t c = i % s.c, q = i / s.c % s.out_w(), p = i / s.c / s.out_w() % s.out_h();
    const int64_t n = i / s.c / s.out_w() / s.out_h();
    double highest = -std::numeric_limits<double>::infinity(), sum = 0, inside = 0;
    for (int64_t a = 0; a < s.kh; ++a) {
      for (int64_t b = 0; b < s.kw; ++b) {
        const int64_t ih = p * s.stride_h - s.pad_top + a * s.dilation_h;
        const int64_t iw = q * s.stride_w - s.pad_left + b * s.dilation_w;
        if (ih < 0 || iw < 0 || ih >= s.h || iw >= s.w) continue;
        const double v = x[static_cast<size_t>(((n * s.h + ih) * s.w + iw) * s.c + c)];
        highest = std::isnan(highest) || v <= highest ? highest : v;
        sum += v;
        ++inside;
      }
    }
    pooled.highest.push_back(highest);
    pooled.mean.push_back(inside > 0 ? sum / inside : 0);
  }
  return pooled;
}

void expect_pooled(const std::vector<float>& got, const std::vector<double>& want, const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]))
      ASSERT_TRUE(std::isnan(got[i])) << what << " at " << i << " is " << got[i];
    else if (std::isinf(want[i]))
      ASSERT_EQ(got[i], want[i]) << what << " at " << i;
    else
      ASSERT_NEAR(got[i], want[i], 1e-5) << what << " at " << i;
  }
}

TEST(PoolNhwc, HighWindowsAndValuesThatAreNotFinite) {
  ConvShape high{.n = 1, .h = 700, .w = 3, .c = 19, .oc = 19, .kh = 600, .kw = 2, .stride_h = 45};
  high.pad_top = 30, high.pad_bottom = 20;
  ConvShape apart = nhwc_shape(11, 70, 70, 3, 2);
  apart.dilation_h = apart.dilation_w = 2;
  ConvShape beyond = nhwc_shape(4, 5, 5, 2, 1);  // windows that lie in the padding alone
  beyond.pad_top = beyond.pad_left = 3;
  for (const ConvShape& s : {high, apart, beyond}) {
    std::vector<float> x = random_floats(s.n * s.h * s.w * s.c, 1);
    for (size_t i = 0; i < x.size() && s.kh < 600; ++i) {
      if (i % static_cast<size_t>(s.c) % 5 == 0) x[i] = -std::numeric_limits<float>::infinity();
      if (i % 97 == 0) x[i] = std::numeric_limits<float>::quiet_NaN();
    }
    const Pooled want = reference_pool(s, x);
    for (const Isa isa : usable_isas()) {
      std::vector<float> y(want.mean.size());
      PoolArgs args = {s, s.out_h(), s.out_w(), x.data(), y.data(), false, isa};
      base::ThreadPool pool(2);
      max_pool_nhwc(args, pool);
      expect_pooled(y, want.highest, "maximum " + std::string(to_string(isa)));
      std::vector<char> workspace(average_pool_workspace_bytes(args));
      average_pool_nhwc(args, workspace.data(), pool);
      expect_pooled(y, want.mean, "mean " + std::string(to_string(isa)));
    }
  }
}

TEST(PoolNhwc, GlobalAverage) {
  const int64_t n = 3, h = 7, w = 5;
  for (const int64_t c : {1, 43, 64, 300, 520}) {
    const std::vector<float> x = random_floats(n * h * w * c, 1);
    for (const Isa isa : usable_isas()) {
      std::vector<float> y(static_cast<size_t>(n * c) + 1, -7), alone(y);
      base::ThreadPool pool(2), one(1);
      global_average_pool_nhwc({n, h, w, c, x.data(), y.data(), isa}, pool);
      global_average_pool_nhwc({n, h, w, c, x.data(), alone.data(), isa}, one);
      ASSERT_EQ(y, alone);
      ASSERT_EQ(y.back(), -7);
      for (int64_t i = 0; i < n * c; ++i) {
        double sum = 0;
        for (int64_t p = 0; p < h * w; ++p) sum += x[static_cast<size_t>((i / c * h * w + p) * c + i % c)];
        ASSERT_NEAR(y[static_cast<size_t>(i)], sum / static_cast<double>(h * w), 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::cpu
