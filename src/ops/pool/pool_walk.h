// How reference pooling kernels walk windows, forward and backward: the points of a window, the first
// maximum.
#pragma once

#include <algorithm>
#include <array>

#include "ir/kernel.h"
#include "ops/conv/window.h"

namespace trireme::ops {

/// One pooling in ONNX layout: its window and what becomes of the values in it.
struct PoolPlan {
  Window window;
  int64_t planes = 0;
  bool include_pad = false;   // average: padding counts in the divisor
  bool column_major = false;  // indices of max_pool
  int64_t p = 2;              // order of the Lp norm
};

inline PoolPlan plan_pool(const ir::NodeView& node) {
  const tensor::Dims x = node.in_dims(0);
  return {.window = make_window(node.attrs, {}, {x.begin() + 2, x.end()}),
          .planes = x[0] * x[1],
          .include_pad = node.attrs.get_int("count_include_pad", 0) != 0,
          .column_major = node.attrs.get_int("storage_order", 0) != 0,
          .p = node.attrs.get_int("p", 2)};
}

/// Taps of one axis that read inside the input when the result index is o: [first, last).
inline TapRange taps_inside(const WindowAxis& a, int64_t o) {
  const int64_t start = o * a.stride - a.pad_begin;
  const int64_t first = start >= 0 ? 0 : (-start + a.dilation - 1) / a.dilation;
  const int64_t last = std::min(a.kernel, start >= a.in ? 0 : (a.in - start + a.dilation - 1) / a.dilation);
  return {std::min(first, std::max<int64_t>(last, 0)), std::max<int64_t>(last, 0)};
}

/// Taps of one axis inside the padded input; a window of ceil_mode may reach beyond it.
inline int64_t padded_taps(const WindowAxis& a, int64_t o) {
  const int64_t start = o * a.stride - a.pad_begin, end = a.in + a.pad_end;
  return std::min(a.kernel, (end - start + a.dilation - 1) / a.dilation);
}

/// Calls visit(plane offset) for every input point of the window at result (d, h, w).
template <class F>
void for_window(const Window& win, const std::array<int64_t, 3>& o, F&& visit) {
  const TapRange td = taps_inside(win[0], o[0]), th = taps_inside(win[1], o[1]),
                 tw = taps_inside(win[2], o[2]);
  for (int64_t kd = td.first; kd < td.last; ++kd) {
    const int64_t d = o[0] * win[0].stride - win[0].pad_begin + kd * win[0].dilation;
    for (int64_t kh = th.first; kh < th.last; ++kh) {
      const int64_t h = o[1] * win[1].stride - win[1].pad_begin + kh * win[1].dilation;
      for (int64_t kw = tw.first; kw < tw.last; ++kw) {
        const int64_t w = o[2] * win[2].stride - win[2].pad_begin + kw * win[2].dilation;
        visit((d * win[1].in + h) * win[2].in + w);
      }
    }
  }
}

/// Calls point(result offset, result index) for every point of a result plane.
template <class F>
void for_points(const Window& win, F&& point) {
  std::array<int64_t, 3> o{};
  int64_t at = 0;
  for (o[0] = 0; o[0] < win[0].out; ++o[0]) {
    for (o[1] = 0; o[1] < win[1].out; ++o[1]) {
      for (o[2] = 0; o[2] < win[2].out; ++o[2]) point(at++, o);
    }
  }
}

/// Plane offset of the largest value of the window at result o; the first of equal ones, the last NaN; -1 if
/// the window lies outside.
template <class T>
int64_t first_maximum(const Window& win, const std::array<int64_t, 3>& o, const T* x) {
  int64_t where = -1;
  for_window(win, o, [&](int64_t i) {
    if (where < 0 || x[i] > x[where] || x[i] != x[i]) where = i;
  });
  return where;
}

/// Flat index of the maximum as ONNX counts it: over all planes, by rows or (storage_order 1) by columns.
inline int64_t stored_index(const Window& win, int64_t plane, int64_t offset, bool column_major) {
  if (!column_major) return plane * win.in_points() + offset;
  const int64_t w = offset % win[2].in, h = offset / win[2].in % win[1].in,
                d = offset / (win[2].in * win[1].in);
  return plane * win.in_points() + (w * win[1].in + h) * win[0].in + d;
}

}  // namespace trireme::ops
