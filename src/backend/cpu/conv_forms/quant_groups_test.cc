// Tests 8-bit convolutions in blocks of groups, byte by byte against integer loops over random shapes.
#include "backend/cpu/conv_forms/quant_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace trireme::cpu {
namespace {

ConvShape random_quant_shape(std::mt19937& generator) {
  const auto pick = [&](std::initializer_list<int> from) {
    return *(from.begin() + generator() % from.size());
  };
  for (;;) {
    ConvShape s;
    s.n = pick({1, 2});
    s.h = pick({1, 3, 7, 9, 14}), s.w = pick({1, 5, 7, 14, 27, 30});
    s.groups = pick({2, 3, 4, 6, 8, 12, 16});
    s.c = s.groups * pick({1, 2, 3, 4, 8, 12, 16, 18, 24, 48, 64});
    s.oc = s.groups * pick({1, 2, 3, 4, 8, 12, 16, 18, 20, 24});
    s.kh = pick({1, 2, 3, 3, 5}), s.kw = pick({1, 3, 3, 4, 5});
    s.stride_h = pick({1, 1, 2, 3}), s.stride_w = pick({1, 1, 2, 3});
    s.dilation_h = pick({1, 1, 2});
    s.pad_top = pick({0, 1, 2}), s.pad_left = pick({0, 1, 7});
    s.pad_bottom = pick({0, 1, 5}), s.pad_right = pick({0, 1, 3});
    const bool fits = s.h + s.pad_top + s.pad_bottom > s.dilation_h * (s.kh - 1) &&
                      s.w + s.pad_left + s.pad_right > s.kw - 1;
    if (fits && s.kh * s.kw > 1 && s.flop() < 4000000) return s;
  }
}

/// A quantized convolution: bytes as they lie in memory, zero points, scales.
struct QuantProblem {
  ConvShape s;
  bool in_signed, w_signed, out_signed;
  int32_t zero;  // of the input
  std::vector<uint8_t> x, w;
  std::vector<int32_t> bias, w_zero;
  std::vector<float> scale;
  QuantEpilogue e;

  int64_t outputs() const { return s.n * s.out_h() * s.out_w() * s.oc; }
};

QuantProblem quant_problem(const ConvShape& s, int trial, std::mt19937& generator) {
  QuantProblem p{
      .s = s, .in_signed = trial % 2 != 0, .w_signed = trial % 3 != 0, .out_signed = trial % 5 == 0};
  p.zero = p.in_signed ? -5 : 131;
  p.x.resize(static_cast<size_t>(s.n * s.h * s.w * s.c));
  p.w.resize(static_cast<size_t>(s.oc * s.c / s.groups * s.kh * s.kw));
  for (uint8_t& v : p.x) v = generator() % 3 != 0 ? static_cast<uint8_t>(generator()) : 0xff;
  for (uint8_t& v : p.w) v = generator() % 3 != 0 ? static_cast<uint8_t>(generator()) : 0x7f;
  for (int64_t o = 0; o < s.oc; ++o) {
    p.bias.push_back(static_cast<int32_t>(generator() % 4001) - 2000);
    p.scale.push_back(0.0002f * static_cast<float>(1 + generator() % 40));
    p.w_zero.push_back(p.w_signed ? 0 : 128);
  }
  p.e = {QuantOutput::u8, nullptr, nullptr, p.scale.data(), 90, 90, 255};
  if (p.out_signed) p.e.output = QuantOutput::s8, p.e.zero = -20, p.e.lo = -128, p.e.hi = 100;
  p.e.scales_below_one = true;
  return p;
}

int64_t value_at(const std::vector<uint8_t>& bytes, int64_t i, bool is_signed) {
  const uint8_t byte = bytes[static_cast<size_t>(i)];
  return is_signed ? static_cast<int8_t>(byte) : byte;
}

/// The byte of output i: the exact sum, scaled, rounded to even and clamped.
uint8_t wanted_byte(const QuantProblem& p, int64_t i) {
  const ConvShape& s = p.s;
  const int64_t ow = s.out_w(), oh = s.out_h(), cg = s.c / s.groups, og = s.oc / s.groups;
  const int64_t o = i % s.oc, q = i / s.oc % ow, line = i / s.oc / ow % oh, n = i / s.oc / ow / oh;
  int64_t sum = p.bias[static_cast<size_t>(o)];
  for (int64_t a = 0; a < s.kh; ++a) {
    for (int64_t b = 0; b < s.kw; ++b) {
      const int64_t ih = line * s.stride_h - s.pad_top + a * s.dilation_h,
                    iw = q * s.stride_w - s.pad_left + b;
      if (ih < 0 || ih >= s.h || iw < 0 || iw >= s.w) continue;
      for (int64_t c = 0; c < cg; ++c) {
        const int64_t pixel = ((n * s.h + ih) * s.w + iw) * s.c + o / og * cg + c;
        sum += (value_at(p.x, pixel, p.in_signed) - p.zero) *
               (value_at(p.w, ((o * cg + c) * s.kh + a) * s.kw + b, p.w_signed) - (p.w_signed ? 0 : 128));
      }
    }
  }
  const float real = static_cast<float>(sum) * p.scale[static_cast<size_t>(o)];
  const double rounded = std::nearbyint(double{real}) + p.e.zero;
  return static_cast<uint8_t>(static_cast<int>(std::clamp<double>(rounded, p.e.lo, p.e.hi)));
}

/// Offsets of all blocks: none needs the sums of its rows.
std::vector<int32_t> offsets_of(const QuantProblem& p, const std::vector<PackedQuantMatrix>& blocks) {
  std::vector<int32_t> offsets(p.bias.size()), factors(p.bias.size());
  const size_t each = offsets.size() / blocks.size();
  for (size_t b = 0; b < blocks.size(); ++b) {
    const size_t at = b * each;
    EXPECT_FALSE(quant_offsets(blocks[b], {p.in_signed, p.zero}, p.bias.data() + at, p.w_zero.data() + at,
                               {offsets.data() + at, factors.data() + at}));
  }
  return offsets;
}

TEST(QuantGroups, RandomShapesMatchIntegerLoops) {
  std::mt19937 generator(13);
  for (int trial = 0; trial < 120; ++trial) {
    const ConvShape s = random_quant_shape(generator);
    const QuantProblem p = quant_problem(s, trial, generator);
    for (const Isa isa : usable_isas()) {
      EXPECT_EQ(quant_groups_fits(s, isa), isa >= Isa::avx512_vnni);
      if (!quant_groups_fits(s, isa)) continue;
      std::vector<char> memory(packed_quant_groups_bytes(s, isa));
      const auto blocks = pack_quant_groups(s, {p.w.data(), p.w_signed}, memory.data(), isa);
      const std::vector<int32_t> offsets = offsets_of(p, blocks);
      QuantEpilogue e = p.e;
      e.offsets = offsets.data();
      for (const int threads : {1, 3}) {
        const size_t n = static_cast<size_t>(p.outputs());
        std::vector<uint8_t> y(n + 64, 0x55);
        std::vector<char> workspace(quant_groups_workspace_bytes(s, threads, isa), char{77});
        base::ThreadPool pool(threads);
        quant_groups_nhwc(
            {s, p.x.data(), ImageLayout::nhwc, {p.in_signed, p.zero}, blocks.data(), y.data(), e},
            workspace.data(), pool);
        for (size_t i = 0; i < n; ++i) {
          ASSERT_EQ(y[i], wanted_byte(p, static_cast<int64_t>(i)))
              << "trial " << trial << ": " << s.c << " to " << s.oc << " in " << s.groups
              << " groups, kernel " << s.kh << " x " << s.kw << ", output " << i;
        }
        for (size_t i = n; i < y.size(); ++i) ASSERT_EQ(y[i], 0x55);
      }
    }
  }
}

/// What the form leaves to a product for each group.
TEST(QuantGroups, RefusesWhatItsTilesDoNotReach) {
  ConvShape s;
  s.h = s.w = 9, s.c = s.oc = 64, s.groups = 4, s.kh = s.kw = 3;
  const bool has_tiles = quant_groups_fits(s);
  EXPECT_EQ(has_tiles, best_isa() >= Isa::avx512_vnni);
  ConvShape one = s, dilated = s, wide = s, pointwise = s, far = s;
  one.groups = 1;
  dilated.dilation_w = 2;
  wide.oc = 4 * 25;
  pointwise.kh = pointwise.kw = 1;
  far.dilation_h = far.pad_top = far.pad_bottom = 1 << 20;  // lines far beyond the image would be copied
  for (const ConvShape& other : {one, dilated, wide, pointwise, far}) EXPECT_FALSE(quant_groups_fits(other));
}

}  // namespace
}  // namespace trireme::cpu
