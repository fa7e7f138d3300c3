// Batch norm: statistics of channels over the batch, and the normalised result.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/reduce/channels.h"
#include "backend/cuda/reduce/columns.h"

namespace trireme::cuda {

/// Inference: y = (x - mean) / sqrt(variance + epsilon) scale + bias. 2 sizeof(T) bytes an element.
template <class T, class S = float>
struct ChannelNorm {
  const T* x;
  const S *scale, *bias, *mean, *variance;
  T* y;
  ChannelExtents extents;
  float epsilon;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t n = extents.outer * extents.channels * extents.inner;
    const int64_t stride = lane.blocks() * lane.threads() * kPack<T>;
    for (int64_t at = (lane.block() * lane.threads() + lane.thread()) * kPack<T>; at < n; at += stride) {
      float v[kPack<T>];
      load_pack(x + at, n - at, v);
      for_channels(extents, at, kPack<T>, [&](int i, int64_t c) {
        const float factor = to_float(scale[c]) / sqrtf(to_float(variance[c]) + epsilon);
        v[i] = (v[i] - to_float(mean[c])) * factor + to_float(bias[c]);
      });
      store_pack(v, n - at, y + at);
    }
  }
};

/// Mean and sum of squared differences of each channel over pieces: [2, pieces, channels]. Channels last: a
/// piece is rows of the grid; sums are taken around the piece's first value. sizeof(T) bytes an element.
template <class T>
struct ChannelMoments {
  const T* x;
  float* parts;
  ColumnGrid grid;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    struct Centre {
      float of[kPack<T>];
    };
    column_pieces_of<T, 2>(
        lane, grid,
        [&](int64_t column, int64_t piece) {
          Centre centre;
          load_columns(x, grid, piece * grid.piece_rows, column, centre.of);
          return centre;
        },
        [&](const Centre& centre, int64_t row, int64_t column, float(&sum)[2][kPack<T>]) {
          float v[kPack<T>];
          load_columns(x, grid, row, column, v);
          for (int i = 0; i < kPack<T>; ++i) {
            const float d = v[i] - centre.of[i];
            sum[0][i] += d;
            sum[1][i] += d * d;
          }
        },
        [&](int64_t piece, int64_t column, const float* total) {
          const auto count = static_cast<float>(grid.last_row(piece) - piece * grid.piece_rows);
          const float shift = total[0] / count;
          const float centre = to_float(x[piece * grid.piece_rows * grid.n + column]);
          parts[piece * grid.n + column] = centre + shift;
          parts[(grid.pieces + piece) * grid.n + column] = total[1] - total[0] * shift;
        });
  }
};

/// The same for planes: a piece is one of `outer`, a warp a plane.
template <class T>
struct PlaneMoments {
  const T* x;
  float* parts;
  ChannelExtents extents;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t planes = extents.outer * extents.channels, warps = lane.threads() / kWarp;
    for (int64_t p = lane.block() * warps + lane.thread() / kWarp; p < planes; p += lane.blocks() * warps) {
      const float centre = to_float(x[p * extents.inner]);
      float sum = 0, squares = 0;
      for_plane(lane, x, p * extents.inner, extents.inner, [&](float v, int64_t) {
        sum += v - centre;
        squares += (v - centre) * (v - centre);
      });
      sum = warp_sum(lane, sum);
      squares = warp_sum(lane, squares);
      if (lane.thread() % kWarp != 0) continue;
      const float shift = sum / static_cast<float>(extents.inner);
      parts[p] = centre + shift;
      parts[planes + p] = squares - sum * shift;
    }
  }
};

/// Pieces of `each` values of a channel (the last may have fewer).
struct PieceCounts {
  int64_t pieces = 0, each = 0, values = 0;
  TRIREME_DEVICE double of(int64_t piece) const {
    const int64_t rest = values - piece * each;
    return static_cast<double>(rest < each ? rest : each);
  }
};

/// Joins pieces of moments in f64: a warp takes every 16th piece of 32 channels, then the warps in their
/// order (Chan, Golub & LeVeque 1979).
struct JoinMoments {
  static constexpr int kThreads = 512;
  static constexpr int64_t kSharedBytes = 3 * kThreads * static_cast<int64_t>(sizeof(double));
  const float* parts;  // [2, pieces, channels]
  float *mean, *inv_std, *variance;
  int64_t channels;
  PieceCounts counts;
  double epsilon;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    double* shared = lane.template shared<double>();
    const int warp = lane.thread() / kWarp, in_warp = lane.thread() % kWarp, warps = kThreads / kWarp;
    const int64_t groups = (channels + kWarp - 1) / kWarp;
    for (int64_t group = lane.block(); group < groups; group += lane.blocks()) {
      const int64_t c = group * kWarp + in_warp;
      double joined[3] = {};  // values, mean, squares
      for (int64_t p = warp; p < counts.pieces && c < channels; p += warps) {
        const double piece[3] = {counts.of(p), static_cast<double>(parts[p * channels + c]),
                                 static_cast<double>(parts[(counts.pieces + p) * channels + c])};
        join(joined, piece);
      }
      for (int i = 0; i < 3; ++i) shared[i * kThreads + lane.thread()] = joined[i];
      lane.sync();
      for (int w = 1; w < warps && warp == 0; ++w) {
        double piece[3];
        for (int i = 0; i < 3; ++i) piece[i] = shared[i * kThreads + w * kWarp + in_warp];
        join(joined, piece);
      }
      lane.sync();
      if (warp == 0 && c < channels) write(c, joined);
    }
  }

 private:
  static TRIREME_DEVICE void join(double (&to)[3], const double (&piece)[3]) {
    const double total = to[0] + piece[0];
    if (total == 0) return;
    const double apart = piece[1] - to[1];
    to[1] += apart * piece[0] / total;
    to[2] += piece[2] + apart * apart * to[0] * piece[0] / total;
    to[0] = total;
  }
  TRIREME_DEVICE void write(int64_t c, const double (&joined)[3]) const {
    const double n = joined[0], squares = joined[2] > 0 ? joined[2] : 0;
    mean[c] = static_cast<float>(joined[1]);
    inv_std[c] = static_cast<float>(1 / sqrt(squares / n + epsilon));
    variance[c] = static_cast<float>(squares / (n > 1 ? n - 1 : 1));
  }
};

/// y = activation((x - mean) inv_std scale + bias + residual). 2 sizeof(T) bytes an element, with residual 3.
template <class T, class S = float>
struct BatchNormApply {
  const T *x, *residual;  // residual may be null
  const S *scale, *bias;
  const float *mean, *inv_std;
  T* y;
  ChannelExtents extents;
  bool relu;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t n = extents.outer * extents.channels * extents.inner;
    const int64_t stride = lane.blocks() * lane.threads() * kPack<T>;
    for (int64_t at = (lane.block() * lane.threads() + lane.thread()) * kPack<T>; at < n; at += stride) {
      float v[kPack<T>], more[kPack<T>] = {};
      load_pack(x + at, n - at, v);
      if (residual != nullptr) load_pack(residual + at, n - at, more);
      for_channels(extents, at, kPack<T>, [&](int i, int64_t c) {
        v[i] = (v[i] - mean[c]) * (to_float(scale[c]) * inv_std[c]) + to_float(bias[c]);
        if (residual != nullptr) v[i] += more[i];
        if (relu && v[i] < 0) v[i] = 0;
      });
      store_pack(v, n - at, y + at);
    }
  }
};

}  // namespace trireme::cuda
