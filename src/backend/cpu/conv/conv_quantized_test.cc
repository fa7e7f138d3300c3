// Tests 8-bit convolutions, dense and depthwise, bit by bit against integer loops at every level.
#include "backend/cpu/conv/conv_quantized.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/conv/depthwise_nhwc.h"

namespace trireme::cpu {
namespace {

/// One random quantised convolution and its exact result.
struct QuantizedProblem {
  QuantizedProblem(const ConvShape& shape, QuantInput in, bool weights_signed, int32_t weight_zero)
      : s(shape), input(in), w_signed(weights_signed) {
    std::mt19937 generator(3);
    x.resize(static_cast<size_t>(s.n * s.h * s.w * s.c));
    w.resize(static_cast<size_t>(s.oc * s.c / s.groups * s.kh * s.kw));
    for (uint8_t& v : x) v = generator() % 3 ? static_cast<uint8_t>(generator()) : 0xff;
    for (uint8_t& v : w) v = generator() % 3 ? static_cast<uint8_t>(generator()) : 0x7f;
    for (int64_t o = 0; o < s.oc; ++o) {
      bias.push_back(static_cast<int32_t>(generator() % 4001) - 2000);
      zero.push_back(weight_zero);
      scale.push_back(0.0002f * static_cast<float>(1 + generator() % 40));
    }
  }

  int64_t weight(size_t i) const { return (w_signed ? static_cast<int8_t>(w[i]) : w[i]) - int64_t{zero[0]}; }
  int64_t pixel(size_t i) const {
    return (input.is_signed ? static_cast<int8_t>(x[i]) : x[i]) - int64_t{input.zero};
  }

  int64_t exact(int64_t i) const {
    const int64_t ow = s.out_w(), oh = s.out_h(), cg = s.c / s.groups, og = s.oc / s.groups;
    const int64_t o = i % s.oc, q = i / s.oc % ow, p = i / s.oc / ow % oh, n = i / s.oc / ow / oh;
    int64_t sum = bias[static_cast<size_t>(o)];
    for (int64_t c = 0; c < cg; ++c) {
      for (int64_t a = 0; a < s.kh; ++a) {
        for (int64_t b = 0; b < s.kw; ++b) {
          const int64_t ih = p * s.stride_h - s.pad_top + a * s.dilation_h;
          const int64_t iw = q * s.stride_w - s.pad_left + b * s.dilation_w;
          if (ih < 0 || ih >= s.h || iw < 0 || iw >= s.w) continue;
          sum += pixel(static_cast<size_t>(((n * s.h + ih) * s.w + iw) * s.c + o / og * cg + c)) *
                 weight(static_cast<size_t>(((o * cg + c) * s.kh + a) * s.kw + b));
        }
      }
    }
    return sum;
  }

  int64_t outputs() const { return s.n * s.out_h() * s.out_w() * s.oc; }

  void expect(const std::vector<uint8_t>& y, const QuantEpilogue& e) const {
    for (int64_t i = 0; i < outputs(); ++i) {
      const float real = static_cast<float>(exact(i)) * scale[static_cast<size_t>(i % s.oc)];
      const double want =
          std::min<double>(e.hi, std::max<double>(e.lo, std::nearbyint(double{real}) + e.zero));
      ASSERT_EQ(y[static_cast<size_t>(i)], static_cast<uint8_t>(static_cast<int>(want)))
          << "c=" << s.c << " oc=" << s.oc << " k=" << s.kh << " stride " << s.stride_w << " at " << i;
    }
  }

  /// The input as [n, c, h, w].
  std::vector<uint8_t> planes() const {
    std::vector<uint8_t> out(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t c = static_cast<size_t>(s.c), hw = static_cast<size_t>(s.h * s.w);
      out[(i / c / hw * c + i % c) * hw + i / c % hw] = x[i];
    }
    return out;
  }

  ConvShape s;
  QuantInput input;
  bool w_signed;
  std::vector<uint8_t> x, w;
  std::vector<int32_t> bias, zero;
  std::vector<float> scale;
};

ConvShape quantized_shape(int64_t hw, int64_t c, int64_t oc, int k, int stride) {
  ConvShape s;
  s.n = 2;
  s.h = hw;
  s.w = hw + 2;
  s.c = c;
  s.oc = oc;
  s.kh = s.kw = k;
  s.stride_h = s.stride_w = stride;
  s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = k / 2;
  return s;
}

TEST(ConvQuantized, MatchesIntegerLoops) {
  std::vector<ConvShape> shapes = {quantized_shape(9, 3, 32, 3, 2),   quantized_shape(7, 20, 70, 1, 1),
                                   quantized_shape(8, 24, 150, 1, 2), quantized_shape(6, 17, 40, 3, 1),
                                   quantized_shape(7, 64, 40, 3, 1),  quantized_shape(5, 4, 9, 5, 1),
                                   quantized_shape(35, 3, 40, 3, 2),  quantized_shape(20, 1, 18, 7, 1)};
  ConvShape grouped = quantized_shape(8, 24, 18, 3, 1);
  grouped.groups = 3;
  grouped.dilation_w = 2;
  shapes.push_back(grouped);
  for (const auto& [groups, stride] : {std::pair{5, 2}, {20, 1}, {2, 1}}) {  // 16, 4 and 40 channels each
    ConvShape g = quantized_shape(11, 80, 80, 3, stride);
    g.groups = groups;
    shapes.push_back(g);
  }
  ConvShape narrow = quantized_shape(6, 18, 36, 1, 1);  // 3 channels a group: their bytes are gathered
  narrow.groups = 6;
  shapes.push_back(narrow);
  for (const ConvShape& s : shapes) {
    for (const int kind : {0, 1, 2}) {
      const QuantizedProblem p(s, kind == 1 ? QuantInput{true, -5} : QuantInput{false, 128}, kind != 2,
                               kind == 2 ? 121 : 0);
      for (const Isa isa : usable_isas()) {
        std::vector<char> memory(packed_quant_conv_bytes(s, isa));
        std::vector<PackedQuantMatrix> groups;
        std::vector<int32_t> offsets(p.bias.size()), factors(p.bias.size());
        bool needs = false;
        for (int64_t g = 0; g < s.groups; ++g) {
          groups.push_back(pack_quant_conv(s, {p.w.data(), p.w_signed}, g, memory.data(), isa));
          const int64_t at = g * s.oc / s.groups;
          needs |= quant_offsets(groups.back(), p.input, p.bias.data() + at, p.zero.data() + at,
                                 {offsets.data() + at, factors.data() + at});
        }
        QuantEpilogue e = {
            QuantOutput::u8, offsets.data(), needs ? factors.data() : nullptr, p.scale.data(), 90, 90, 255};
        for (const int threads : {1, 3}) {
          e.scales_below_one = threads == 3;  // they are: both ways must agree
          std::vector<uint8_t> y(static_cast<size_t>(p.outputs()));
          std::vector<char> workspace(quant_conv2d_workspace_bytes(s, threads, isa));
          base::ThreadPool pool(threads);
          QuantConvArgs args = {s, p.x.data(), ImageLayout::nhwc, p.input, groups.data(), y.data(), e};
          quant_conv2d_nhwc(args, workspace.data(), pool);
          p.expect(y, e);
          if (!quant_conv_reads_planes(s)) continue;
          const std::vector<uint8_t> planes = p.planes();
          std::vector<uint8_t> again(y.size());
          args.x = planes.data();
          args.x_layout = ImageLayout::nchw;
          args.y = again.data();
          quant_conv2d_nhwc(args, workspace.data(), pool);
          ASSERT_EQ(y, again);
        }
      }
    }
  }
}

/// Runs `p` at every level, with byte dot products where they fit, and compares with the integer loops.
void check_depthwise(const QuantizedProblem& p, QuantEpilogue e) {
  const QuantDepthwiseWeights w = {p.s, p.w.data(), p.w_signed, p.zero.data(), p.bias.data()};
  std::vector<float> weights(p.w.size());
  std::vector<int32_t> sums(p.bias.size());
  pack_quant_depthwise(w, p.input, {weights.data(), sums.data()});
  e.offsets = sums.data();
  e.scale = p.scale.data();
  for (const Isa isa : usable_isas()) {
    std::vector<char> dots(packed_depthwise_dot_bytes(p.s));
    const bool fits = pack_depthwise_dot(w, p.input, p.scale.data(), dots.data(), isa);
    const bool wanted = isa >= Isa::avx512_vnni && p.s.kh == 3 && p.zero[0] == (p.w_signed ? 0 : 128);
    EXPECT_TRUE(fits || !wanted);
    for (const bool with_dots : {false, true}) {
      if (with_dots && !fits) continue;
      e.scales_below_one = with_dots;
      const size_t n = static_cast<size_t>(p.outputs());
      std::vector<uint8_t> y(n + 64, 0x55);
      base::ThreadPool pool(2);
      quant_depthwise_nhwc({p.s, p.x.data(), p.input, weights.data(), y.data(), e, isa, dots.data()}, pool);
      for (size_t i = n; i < y.size(); ++i) ASSERT_EQ(y[i], 0x55);
      p.expect(y, e);
    }
  }
}

TEST(DepthwiseQuantized, MatchesIntegerLoops) {
  for (const int k : {3, 5, 2}) {
    for (const int stride : {1, 2}) {
      for (const int64_t c : {5, 16, 27, 32, 43, 50, 64, 144}) {
        for (const int64_t hw : {9, 4}) {
          ConvShape s = quantized_shape(hw, c, c, k, stride);
          s.groups = c;
          const bool is_signed = c % 2 == 1 || hw == 4;
          const int32_t weight_zero = c == 43 ? 2 : 0;
          const QuantizedProblem p(s, {is_signed, is_signed ? -9 : 131}, true, weight_zero);
          check_depthwise(p, {QuantOutput::s8, nullptr, nullptr, nullptr, -20, -128, 100});
          check_depthwise(p, {QuantOutput::u8, nullptr, nullptr, nullptr, 100, 3, 255});
        }
      }
    }
  }
}

TEST(DepthwiseQuantized, PaddingOnOneSideAndUnsignedWeights) {
  for (const int stride : {1, 2}) {
    ConvShape s = quantized_shape(6, 80, 80, 3, stride);
    s.groups = 80;
    s.pad_top = s.pad_left = 0;
    s.pad_bottom = s.pad_right = 2;
    check_depthwise(QuantizedProblem(s, {false, 7}, false, 128),
                    {QuantOutput::u8, nullptr, nullptr, nullptr, 9, 9, 200});
    s.w = 1;
    s.pad_left = 2;
    check_depthwise(QuantizedProblem(s, {true, 7}, true, 0),
                    {QuantOutput::u8, nullptr, nullptr, nullptr, 9, 0, 255});
  }
}

}  // namespace
}  // namespace trireme::cpu
