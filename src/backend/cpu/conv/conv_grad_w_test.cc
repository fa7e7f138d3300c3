// Weight gradients at every instruction-set level against double loops.
#include "backend/cpu/conv/conv_grad_w.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/cpu/simd/simd_level.h"
#include "backend/cpu/conv/winograd_grad_w.h"
#include "backend/cpu/conv/winograd_nhwc.h"
#include "backend/cpu/dense/random_floats.h"

namespace trireme::cpu {
namespace {

std::vector<double> reference_grad_w(const ConvShape& s, const std::vector<float>& x,
                                     const std::vector<float>& dy) {
  const int64_t cg = s.c / s.groups, og = s.oc / s.groups;
  std::vector<double> dw(static_cast<size_t>(s.oc * cg * s.kh * s.kw));
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t p = 0; p < s.out_h(); ++p) {
      for (int64_t q = 0; q < s.out_w(); ++q) {
        for (size_t i = 0; i < dw.size(); ++i) {
          const int64_t at = static_cast<int64_t>(i), b = at % s.kw, a = at / s.kw % s.kh;
          const int64_t c = at / s.kw / s.kh % cg, o = at / s.kw / s.kh / cg;
          const int64_t h = p * s.stride_h - s.pad_top + a, w = q * s.stride_w - s.pad_left + b;
          if (h < 0 || h >= s.h || w < 0 || w >= s.w) continue;
          dw[i] += double{x[static_cast<size_t>(((n * s.h + h) * s.w + w) * s.c + o / og * cg + c)]} *
                   dy[static_cast<size_t>(((n * s.out_h() + p) * s.out_w() + q) * s.oc + o)];
        }
      }
    }
  }
  return dw;
}

ConvShape grad_w_shape(int64_t hw, int64_t c, int64_t oc, int k, int stride) {
  ConvShape s{.n = 2, .h = hw, .w = hw + 1, .c = c, .oc = oc, .kh = k, .kw = k};
  s.stride_h = s.stride_w = stride;
  s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = k / 2;
  return s;
}

/// The vector kernels at the level that goes with `isa`.
void force(Isa isa) {
  const std::vector<SimdLevel> levels = simd_levels();
  if (isa == Isa::portable) return simd_force(levels.back());
  for (const SimdLevel& level : levels) {
    if ((level.name == "AVX2") == (isa == Isa::avx2)) return simd_force(level);
  }
}

TEST(ConvGradW, EveryLevelAgreesWithDoubleLoops) {
  for (const ConvShape& s :
       {grad_w_shape(9, 3, 20, 5, 2), grad_w_shape(7, 16, 24, 3, 1), grad_w_shape(8, 40, 35, 3, 1),
        grad_w_shape(6, 5, 300, 1, 1), grad_w_shape(9, 48, 17, 3, 2)}) {
    const std::vector<float> x = random_floats(s.n * s.h * s.w * s.c, 1);
    const std::vector<float> dy = random_floats(s.n * s.out_h() * s.out_w() * s.oc, 2);
    const std::vector<double> want = reference_grad_w(s, x, dy);
    for (const Isa isa : usable_isas()) {
      force(isa);
      base::ThreadPool pool(3);
      std::vector<float> dw(want.size());
      const ConvGradWArgs args{s, x.data(), ImageLayout::nhwc, dy.data(), dw.data(), isa};
      const auto expect = [&](const char* form) {
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(dw[i], want[i], 1e-4) << form << " " << to_string(isa) << " c " << s.c << " at " << i;
      };
      std::vector<char> space(conv_grad_w_columns_bytes(s, 3));
      conv_grad_w_columns(args, space.data(), pool);
      expect("columns");
      if (conv_grad_w_lines_fits(s, ImageLayout::nhwc)) {
        space.resize(conv_grad_w_lines_bytes(s, ImageLayout::nhwc, 3));
        conv_grad_w_lines(args, space.data(), pool);
        expect("lines");
      }
      if (winograd_fits(s) && s.c >= 16) {
        space.resize(winograd_grad_w_bytes(s, 3));
        winograd_grad_w(args, space.data(), pool);
        expect("winograd");
      }
    }
  }
  simd_unforce();
}

}  // namespace
}  // namespace trireme::cpu
