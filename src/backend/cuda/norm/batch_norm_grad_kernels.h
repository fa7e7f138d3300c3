// The gradients of batch norm: sums of channels in pieces, then one pass over the elements.
#pragma once

#include <cstdint>

#include "backend/cuda/reduce/channels.h"
#include "backend/cuda/reduce/columns.h"

namespace trireme::cuda {

/// What the backward pass reads of an element.
template <class T, class S = float>
struct BatchNormBehind {
  const T *dy, *more, *x, *y;  // more and y may be null
  const S *scale, *bias;
  const float *mean, *inv_std;
  bool relu;

  /// The gradient behind the rectifier.
  TRIREME_DEVICE float gradient(float d, float value, float out, int64_t c) const {
    if (!relu) return d;
    const float before =
        y != nullptr ? out : (value - mean[c]) * (to_float(scale[c]) * inv_std[c]) + to_float(bias[c]);
    return before > 0 ? d : 0.0f;
  }
  TRIREME_DEVICE float normal(float value, int64_t c) const { return (value - mean[c]) * inv_std[c]; }
};

/// Sums of g and g xhat of each channel in pieces, channels last: [2, pieces, channels].
template <class T, class S = float>
struct BatchNormGradSums {
  BatchNormBehind<T, S> in;
  float* sums;
  ColumnGrid grid;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    column_pieces<T, 2>(
        lane, grid,
        [&](int64_t row, int64_t column, int64_t, float(&sum)[2][kPack<T>]) {
          float d[kPack<T>], v[kPack<T>], more[kPack<T>] = {}, out[kPack<T>] = {};
          load_columns(in.dy, grid, row, column, d);
          load_columns(in.x, grid, row, column, v);
          if (in.more != nullptr) load_columns(in.more, grid, row, column, more);
          if (in.y != nullptr) load_columns(in.y, grid, row, column, out);
          for (int i = 0; i < kPack<T>; ++i) {
            if (column + i >= grid.n) continue;
            const float g = in.gradient(d[i] + more[i], v[i], out[i], column + i);
            sum[0][i] += g;
            sum[1][i] += g * in.normal(v[i], column + i);
          }
        },
        [&](int64_t piece, int64_t column, const float* total) {
          sums[piece * grid.n + column] = total[0];
          sums[(grid.pieces + piece) * grid.n + column] = total[1];
        });
  }
};

/// The same for planes, a warp a plane, a piece one of `outer`.
template <class T, class S = float>
struct BatchNormPlaneSums {
  BatchNormBehind<T, S> in;
  float* sums;
  ChannelExtents extents;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t planes = extents.outer * extents.channels, warps = lane.threads() / kWarp;
    for (int64_t p = lane.block() * warps + lane.thread() / kWarp; p < planes; p += lane.blocks() * warps) {
      const int64_t c = p % extents.channels;
      float plain = 0, along = 0;
      for_plane(lane, in.dy, p * extents.inner, extents.inner, [&](float d, int64_t at) {
        const float more = in.more == nullptr ? 0.0f : to_float(in.more[at]);
        const float out = in.y == nullptr ? 0.0f : to_float(in.y[at]), v = to_float(in.x[at]);
        const float g = in.gradient(d + more, v, out, c);
        plain += g;
        along += g * in.normal(v, c);
      });
      plain = warp_sum(lane, plain);
      along = warp_sum(lane, along);
      if (lane.thread() % kWarp == 0) sums[p] = plain, sums[planes + p] = along;
    }
  }
};

/// Adds pieces of two sums in f64, as JoinMoments goes: dbias and dscale, and both in f32 for the last pass.
template <class S>
struct JoinGradSums {
  static constexpr int kThreads = 512;
  static constexpr int64_t kSharedBytes = 2 * kThreads * static_cast<int64_t>(sizeof(double));
  const float* parts;  // [2, pieces, channels]
  float* totals;       // [2, channels]
  S *dscale, *dbias;   // or null
  int64_t channels, pieces;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    double* shared = lane.template shared<double>();
    const int warp = lane.thread() / kWarp, in_warp = lane.thread() % kWarp, warps = kThreads / kWarp;
    const int64_t groups = (channels + kWarp - 1) / kWarp;
    for (int64_t group = lane.block(); group < groups; group += lane.blocks()) {
      const int64_t c = group * kWarp + in_warp;
      double plain = 0, along = 0;
      for (int64_t p = warp; p < pieces && c < channels; p += warps) {
        plain += static_cast<double>(parts[p * channels + c]);
        along += static_cast<double>(parts[(pieces + p) * channels + c]);
      }
      shared[lane.thread()] = plain;
      shared[kThreads + lane.thread()] = along;
      lane.sync();
      for (int w = 1; w < warps && warp == 0; ++w) {
        plain += shared[w * kWarp + in_warp];
        along += shared[kThreads + w * kWarp + in_warp];
      }
      lane.sync();
      if (warp != 0 || c >= channels) continue;
      totals[c] = static_cast<float>(plain);
      totals[channels + c] = static_cast<float>(along);
      if (dbias != nullptr) dbias[c] = from_float<S>(static_cast<float>(plain));
      if (dscale != nullptr) dscale[c] = from_float<S>(static_cast<float>(along));
    }
  }
};

/// dx = scale inv_std (g - mean(g) - xhat mean(g xhat)), dresidual = g. 3 sizeof(T) bytes an element, with
/// more, y and dresidual up to 6.
template <class T, class S = float>
struct BatchNormGradApply {
  BatchNormBehind<T, S> in;
  const float* totals;  // [2, channels]
  T *dx, *dresidual;    // dresidual may be null
  ChannelExtents extents;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t n = extents.outer * extents.channels * extents.inner;
    const float share = 1.0f / static_cast<float>(extents.outer * extents.inner);
    const int64_t stride = lane.blocks() * lane.threads() * kPack<T>;
    for (int64_t at = (lane.block() * lane.threads() + lane.thread()) * kPack<T>; at < n; at += stride) {
      float g[kPack<T>], v[kPack<T>], more[kPack<T>] = {}, out[kPack<T>] = {};
      load_pack(in.dy + at, n - at, g);
      load_pack(in.x + at, n - at, v);
      if (in.more != nullptr) load_pack(in.more + at, n - at, more);
      if (in.y != nullptr) load_pack(in.y + at, n - at, out);
      for_channels(extents, at, kPack<T>, [&](int i, int64_t c) {
        g[i] = in.gradient(g[i] + more[i], v[i], out[i], c);
        const float along = in.normal(v[i], c) * totals[extents.channels + c] * share;
        v[i] = to_float(in.scale[c]) * in.inv_std[c] * (g[i] - totals[c] * share - along);
      });
      store_pack(v, n - at, dx + at);
      if (dresidual != nullptr) store_pack(g, n - at, dresidual + at);
    }
  }
};

}  // namespace trireme::cuda
