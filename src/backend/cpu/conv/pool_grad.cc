// Walks the windows of one image and a block of channels; lines of dx are cleared just before they are
// needed.
#include "backend/cpu/conv/pool_grad.h"

#include <algorithm>
#include <cstring>
#include "backend/cpu/simd/simd_level.h"

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/pool_grad.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

#ifndef TRIREME_POOL_GRAD_LINE
#define TRIREME_POOL_GRAD_LINE
namespace trireme::cpu {

/// One line of windows over the channels [0, channels) of a block; addresses are of the block's first
/// channel.
struct PoolGradLine {
  const PoolGradArgs* args;
  const float* x;   // image, or null
  const float* dy;  // first window of the line
  float* dx;        // image
  int64_t channels;
  int64_t top;    // input line of the first tap, may lie outside
  int low, high;  // taps [low, high) of the window's height lie inside
  float rows;     // what the average divides by on this axis
  bool tiles;     // windows cover the image once: dx is written, not added to
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <bool kWhole>
HWY_INLINE VF load_part(const float* p, size_t n) {
  return kWhole ? hn::LoadU(kF, p) : load_n(p, n);
}

template <bool kWhole>
HWY_INLINE void store_part(VF v, float* p, size_t n) {
  kWhole ? hn::StoreU(v, kF, p) : store_n(v, p, n);
}

/// p[0, n) += v.
template <bool kWhole>
HWY_INLINE void add_part(VF v, float* p, size_t n) {
  store_part<kWhole>(hn::Add(load_part<kWhole>(p, n), v), p, n);
}

/// Columns of taps [low, high) of one window lie inside the image.
struct Columns {
  int64_t first;
  int low, high;
};

HWY_INLINE Columns columns_of(const ConvShape& s, int64_t ow) {
  Columns c{ow * s.stride_w - s.pad_left, 0, s.kw};
  while (c.low < s.kw && c.first + int64_t{c.low} * s.dilation_w < 0) ++c.low;
  while (c.high > c.low && c.first + int64_t{c.high - 1} * s.dilation_w >= s.w) --c.high;
  return c;
}

/// One window of one vector of channels.
struct MaxWindow {
  const float *x, *dy;  // first tap, may lie outside; the window's gradient
  float* dx;            // like x
  Columns columns;
  size_t left;
};

template <bool kWhole, bool kTiles>
HWY_INLINE void max_window(const PoolGradLine& line, const MaxWindow& w) {
  const ConvShape& s = line.args->shape;
  const int64_t down = int64_t{s.dilation_h} * s.w * s.c, right = int64_t{s.dilation_w} * s.c;
  VF best = set(0.0f), where = set(-1.0f);
  bool first = true;
  for (int i = line.low; i < line.high; ++i) {
    for (int j = w.columns.low; j < w.columns.high; ++j) {
      const VF v = load_part<kWhole>(w.x + i * down + j * right, w.left);
      const VF tap = set(static_cast<float>(i * s.kw + j));
      const MF wins = hn::Or(hn::Gt(v, best), not_equal(v, v));
      best = first ? v : hn::IfThenElse(wins, v, best);
      where = first ? tap : hn::IfThenElse(wins, tap, where);
      first = false;
    }
  }
  VF g = load_part<kWhole>(w.dy, w.left);
  if (line.args->rectified) g = hn::IfThenElseZero(hn::Gt(best, set(0.0f)), g);
  for (int i = line.low; i < line.high; ++i) {
    for (int j = w.columns.low; j < w.columns.high; ++j) {
      const MF here = hn::Eq(where, set(static_cast<float>(i * s.kw + j)));
      float* dx = w.dx + i * down + j * right;
      if constexpr (kTiles) {
        // + 0: a cleared element that the gradient is added to never holds -0.
        store_part<kWhole>(hn::Add(hn::IfThenElseZero(here, g), set(0.0f)), dx, w.left);
      } else {
        add_part<kWhole>(hn::IfThenElseZero(here, g), dx, w.left);
      }
    }
  }
}

template <bool kTiles>
void max_windows(const PoolGradLine& line) {
  const PoolGradArgs& a = *line.args;
  const ConvShape& s = a.shape;
  for (int64_t ow = 0; ow < a.out_w; ++ow) {
    const Columns columns = columns_of(s, ow);
    const int64_t at = (line.top * s.w + columns.first) * s.c;
    int64_t c = 0;
    for (; c + static_cast<int64_t>(kLanes) <= line.channels; c += static_cast<int64_t>(kLanes))
      max_window<true, kTiles>(line,
                               {line.x + at + c, line.dy + ow * s.c + c, line.dx + at + c, columns, kLanes});
    if (c < line.channels) {
      max_window<false, kTiles>(line, {line.x + at + c, line.dy + ow * s.c + c, line.dx + at + c, columns,
                                       static_cast<size_t>(line.channels - c)});
    }
  }
}

void max_line(const PoolGradLine& line) { line.tiles ? max_windows<true>(line) : max_windows<false>(line); }

void average_line(const PoolGradLine& line) {
  const PoolGradArgs& a = *line.args;
  const ConvShape& s = a.shape;
  for (int64_t ow = 0; ow < a.out_w; ++ow) {
    const Columns w = columns_of(s, ow);
    int64_t count = w.high - w.low;
    if (a.count_padding) {
      // A window that rounding up added reaches beyond the padding, where nothing counts.
      const int64_t end = s.w + s.pad_right;
      count = std::min<int64_t>(s.kw, (end - w.first + s.dilation_w - 1) / s.dilation_w);
    }
    const float divisor = line.rows * static_cast<float>(count);
    const VF share = set(divisor > 0 ? 1.0f / divisor : 0.0f);
    for (int64_t c = 0; c < line.channels; c += static_cast<int64_t>(kLanes)) {
      const size_t left = std::min(kLanes, static_cast<size_t>(line.channels - c));
      const bool whole = left == kLanes;
      const float* dy = line.dy + ow * s.c + c;
      const VF g = hn::Mul(whole ? load_part<true>(dy, left) : load_part<false>(dy, left), share);
      for (int i = line.low; i < line.high; ++i) {
        const int64_t at = ((line.top + int64_t{i} * s.dilation_h) * s.w + w.first) * s.c + c;
        for (int j = w.low; j < w.high; ++j) {
          float* dx = line.dx + at + int64_t{j} * s.dilation_w * s.c;
          whole ? add_part<true>(g, dx, left) : add_part<false>(g, dx, left);
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(max_line);
HWY_EXPORT(average_line);

namespace {

// Channels of a task: whole cache lines, few enough that images times blocks feed a team.
constexpr int64_t kBlockChannels = 64;

/// Clears the lines [from, to) of a block of channels.
void clear_lines(const ConvShape& s, float* dx, int64_t channels, int64_t from, int64_t to) {
  if (channels == s.c) {
    if (to > from)
      std::memset(dx + from * s.w * s.c, 0, static_cast<size_t>((to - from) * s.w * s.c) * sizeof(float));
    return;
  }
  for (int64_t i = from * s.w; i < to * s.w; ++i)
    std::memset(dx + i * s.c, 0, static_cast<size_t>(channels) * sizeof(float));
}

/// Whether every element of the image is in exactly one window.
bool tiles_image(const PoolGradArgs& a) {
  const ConvShape& s = a.shape;
  const bool side_by_side =
      s.stride_h == s.kh && s.stride_w == s.kw && s.dilation_h == 1 && s.dilation_w == 1;
  return side_by_side && s.pad_top == 0 && s.pad_left == 0 && a.out_h * s.kh == s.h && a.out_w * s.kw == s.w;
}

void walk(const PoolGradArgs& a, void (*run)(const PoolGradLine&), base::ThreadPool& pool) {
  const ConvShape& s = a.shape;
  const bool tiles = a.x != nullptr && tiles_image(a);
  const int64_t blocks = (s.c + kBlockChannels - 1) / kBlockChannels;
  pool.run(s.n * blocks, [&](int64_t task) {
    const int64_t image = task / blocks, first = task % blocks * kBlockChannels;
    PoolGradLine line{.args = &a, .channels = std::min(kBlockChannels, s.c - first), .tiles = tiles};
    const int64_t at = image * s.h * s.w * s.c + first;
    line.x = a.x == nullptr ? nullptr : a.x + at;
    line.dx = a.dx + at;
    int64_t cleared = tiles ? s.h : 0;
    for (int64_t oh = 0; oh < a.out_h; ++oh) {
      line.top = oh * s.stride_h - s.pad_top;
      line.low = 0;
      line.high = s.kh;
      while (line.low < s.kh && line.top + int64_t{line.low} * s.dilation_h < 0) ++line.low;
      while (line.high > line.low && line.top + int64_t{line.high - 1} * s.dilation_h >= s.h) --line.high;
      const int64_t end = s.h + s.pad_bottom;
      const int64_t counted =
          a.count_padding ? std::min<int64_t>(s.kh, (end - line.top + s.dilation_h - 1) / s.dilation_h)
                          : line.high - line.low;
      line.rows = static_cast<float>(counted);
      const int64_t reach =
          std::clamp<int64_t>(line.top + int64_t{s.kh - 1} * s.dilation_h + 1, cleared, s.h);
      clear_lines(s, line.dx, line.channels, cleared, reach);
      cleared = reach;
      line.dy = a.dy + (image * a.out_h + oh) * a.out_w * s.c + first;
      run(line);
    }
    clear_lines(s, line.dx, line.channels, cleared, s.h);
  });
}

}  // namespace

void max_pool_nhwc_grad(const PoolGradArgs& args, base::ThreadPool& pool) {
  simd_ready();
  walk(args, HWY_DYNAMIC_DISPATCH(max_line), pool);
}

void average_pool_nhwc_grad(const PoolGradArgs& args, base::ThreadPool& pool) {
  simd_ready();
  walk(args, HWY_DYNAMIC_DISPATCH(average_line), pool);
}

}  // namespace trireme::cpu
#endif
