// Launchers of sampling at the points of a grid.
#include "backend/cuda/image/grid.h"

#include <type_traits>

#include "backend/cuda/index/copy.h"
#include "backend/cuda/image/grid_kernels.h"
#include "backend/cuda/index/index.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

/// Calls f(number of axes, taps per axis) with both as compile-time constants.
template <class F>
void by_taps(const GridShape& s, F f) {
  const auto with_axes = [&](auto axes) {
    switch (s.mode) {
      case GridMode::nearest: return f(axes, std::integral_constant<int, 1>{});
      case GridMode::linear: return f(axes, std::integral_constant<int, 2>{});
      case GridMode::cubic: return f(axes, std::integral_constant<int, 4>{});
    }
  };
  switch (s.axes) {
    case 1: return with_axes(std::integral_constant<int, 1>{});
    case 2: return with_axes(std::integral_constant<int, 2>{});
    default: return with_axes(std::integral_constant<int, 3>{});
  }
}

Launch grid_for(tensor::Stream& stream, int64_t count) { return flat_launch(stream, count, 128); }

int64_t entries_of(const GridShape& s) { return s.batch * s.points * s.taps(); }

}  // namespace

void grid_sample(On on, const GridShape& s, const void* x, const void* grid, void* y) {
  const int64_t groups = (s.channels + kGridChannels - 1) / kGridChannels,
                count = s.batch * groups * s.points;
  if (count == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    by_taps(s, [&](auto axes, auto taps) {
      launch(on.stream, "grid_sample", grid_for(on.stream, count),
             GridSample<T, decltype(axes)::value, decltype(taps)::value>{
                 s, static_cast<const T*>(x), static_cast<const T*>(grid), static_cast<T*>(y),
                 Divider(s.points, count), Divider(groups, count), s.in_points(), count});
    });
  });
}

void grid_sample_grad_grid(On on, const GridShape& s, const GridGradArgs& a) {
  const int64_t count = s.batch * s.points * s.axes;
  if (count == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    by_taps(s, [&](auto axes, auto taps) {
      launch(on.stream, "grid_sample_grad_grid", grid_for(on.stream, count),
             GridGradGrid<T, decltype(axes)::value, decltype(taps)::value>{
                 s, static_cast<const T*>(a.dy), static_cast<const T*>(a.x), static_cast<const T*>(a.grid),
                 static_cast<T*>(a.to), Divider(s.points, count), s.in_points(), count});
    });
  });
}

bool fits_grid_sort(const GridShape& s) {
  return entries_of(s) < INT32_MAX && s.batch * s.in_points() < INT32_MAX;
}

int64_t grid_sample_grad_x_workspace_bytes(const GridShape& s) {
  return sorted_length(entries_of(s)) * static_cast<int64_t>(sizeof(uint64_t) + sizeof(float));
}

void grid_sample_grad_x(On on, const GridShape& s, const GridGradArgs& a) {
  const int64_t entries = entries_of(s), padded = sorted_length(entries);
  fill_zero(on.stream, a.to, tensor::bytes_of(on.dtype, s.batch * s.channels * s.in_points()));
  if (entries * s.channels == 0) return;
  auto* keys = static_cast<uint64_t*>(a.workspace);
  auto* weights = reinterpret_cast<float*>(keys + padded);
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    by_taps(s, [&](auto axes, auto taps) {
      launch(on.stream, "grid_keys", grid_for(on.stream, (padded + s.taps() - 1) / s.taps()),
             GridKeys<T, decltype(axes)::value, decltype(taps)::value>{
                 s, static_cast<const T*>(a.grid), keys, weights, Divider(s.points, padded), s.in_points(),
                 s.batch * s.points, padded});
    });
    sort_keys(on.stream, keys, padded);
    const int64_t count = entries * s.channels;
    launch(on.stream, "grid_sum_runs", flat_launch(on.stream, count),
           GridSumRuns<T>{s, keys, weights, static_cast<const T*>(a.dy), static_cast<T*>(a.to),
                          Divider(entries, count), s.in_points(), s.taps(), count});
  });
}

void affine_grid(On on, const AffineGrid& s, const void* theta, void* y) {
  const int64_t points = s.out[0] * s.out[1] * s.out[2], count = s.batch * points * s.axes;
  if (count == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "affine_grid", flat_launch(on.stream, count),
           AffineGridPoints<T>{s, static_cast<const T*>(theta), static_cast<T*>(y), points, count});
  });
}

}  // namespace trireme::cuda
