// Batch norm over rows of whole packs of channels, channels last: a thread keeps its channels, so that what
// is known of them is read once and rows stream by, several under way.
#pragma once

#include <cstdint>

#include "backend/cuda/device/step.h"
#include "backend/cuda/norm/batch_norm_kernels.h"

namespace trireme::cuda {

/// [rows, n] shared out: `lanes` threads across with a pack of channels each, the rest of a block downwards.
struct ChannelRows {
  static constexpr int kThreads = 256;
  int64_t rows = 0, n = 0, across = 0;  // tiles
  int lanes = kWarp;

  static ChannelRows of(int64_t rows, int64_t n, int pack) {
    const ColumnGrid g = ColumnGrid::of(rows, n, pack);
    return {rows, n, g.across, g.lanes};
  }
  /// Blocks: whole turns over the tiles.
  int64_t blocks(int64_t most) const {
    const int64_t deep = kThreads / lanes, wanted = (rows + deep - 1) / deep * across;
    return (wanted < most ? wanted : most < across ? across : most / across * across);
  }
};

/// This thread's channels and rows.
struct ChannelPlace {
  int64_t column, row, step;

  template <class Lane>
  static TRIREME_DEVICE ChannelPlace of(const Lane& lane, const ChannelRows& g, int pack) {
    const int64_t deep = ChannelRows::kThreads / g.lanes;
    return {(lane.block() % g.across * g.lanes + lane.thread() % g.lanes) * pack,
            lane.block() / g.across * deep + lane.thread() / g.lanes, lane.blocks() / g.across * deep};
  }
};

/// The values of a pack of channels, as floats.
template <class T, class S>
TRIREME_DEVICE void load_channels(const S* at, int64_t column, float* out) {
  TRIREME_UNROLL
  for (int i = 0; i < kPack<T>; ++i) out[i] = to_float(at[column + i]);
}

/// BatchNormApply. 2 sizeof(T) bytes an element, with residual 3.
template <class T, class S = float>
struct BatchNormRows {
  static constexpr bool kIndependent = true;
  static constexpr int kRows = 4;  // under way
  BatchNormApply<T, S> of;
  ChannelRows walk;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const ChannelPlace place = ChannelPlace::of(lane, walk, kPack<T>);
    if (place.column >= walk.n) return;
    float mean[kPack<T>], gain[kPack<T>], bias[kPack<T>];
    load_channels<T>(of.mean, place.column, mean);
    load_channels<T>(of.inv_std, place.column, gain);
    load_channels<T>(of.bias, place.column, bias);
    TRIREME_UNROLL
    for (int i = 0; i < kPack<T>; ++i) gain[i] = to_float(of.scale[place.column + i]) * gain[i];
    for (int64_t row = place.row; row < walk.rows; row += kRows * place.step) {
      Pack<T> x[kRows] = {}, more[kRows] = {};
      TRIREME_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const int64_t at = (row + r * place.step) * walk.n + place.column;
        if (row + r * place.step >= walk.rows) continue;
        x[r] = *reinterpret_cast<const Pack<T>*>(of.x + at);
        if (of.residual != nullptr) more[r] = *reinterpret_cast<const Pack<T>*>(of.residual + at);
      }
      TRIREME_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (row + r * place.step >= walk.rows) continue;
        Pack<T> y;
        TRIREME_UNROLL
        for (int i = 0; i < kPack<T>; ++i) {
          float v = (to_float(x[r].item[i]) - mean[i]) * gain[i] + bias[i];
          if (of.residual != nullptr) v += to_float(more[r].item[i]);
          y.item[i] = from_float<T>(of.relu && v < 0 ? 0.0f : v);
        }
        *reinterpret_cast<Pack<T>*>(of.y + (row + r * place.step) * walk.n + place.column) = y;
      }
    }
  }
};

}  // namespace trireme::cuda
