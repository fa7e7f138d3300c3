// The gradients of batch norm over rows of whole packs of channels, channels last.
#pragma once

#include <cstdint>

#include "backend/cuda/norm/batch_norm_grad_kernels.h"
#include "backend/cuda/norm/batch_norm_row_kernels.h"

namespace trireme::cuda {

/// What is known of a thread's channels on the way back.
template <class T>
struct ChannelBehind {
  float mean[kPack<T>], inverse[kPack<T>], gain[kPack<T>], bias[kPack<T>];

  template <class S>
  TRIREME_DEVICE void load(const BatchNormBehind<T, S>& in, int64_t column) {
    load_channels<T>(in.mean, column, mean);
    load_channels<T>(in.inv_std, column, inverse);
    load_channels<T>(in.bias, column, bias);
    TRIREME_UNROLL
    for (int i = 0; i < kPack<T>; ++i) gain[i] = to_float(in.scale[column + i]) * inverse[i];
  }
  /// Whether the rectifier let channel i of this pack through; `out` is its result, if that is known.
  TRIREME_DEVICE bool passes(bool has_out, float out, float x, int i) const {
    return (has_out ? out : (x - mean[i]) * gain[i] + bias[i]) > 0;
  }
};

/// The packs of a row that the way back reads.
template <class T>
struct PackBehind {
  Pack<T> dy, more, x, y;

  template <class S>
  TRIREME_DEVICE void load(const BatchNormBehind<T, S>& in, int64_t at) {
    dy = *reinterpret_cast<const Pack<T>*>(in.dy + at);
    x = *reinterpret_cast<const Pack<T>*>(in.x + at);
    if (in.more != nullptr) more = *reinterpret_cast<const Pack<T>*>(in.more + at);
    if (in.y != nullptr) y = *reinterpret_cast<const Pack<T>*>(in.y + at);
  }
  /// The gradient of channel i behind the rectifier.
  template <class S>
  TRIREME_DEVICE float gradient(const BatchNormBehind<T, S>& in, const ChannelBehind<T>& c, int i) const {
    const float d = to_float(dy.item[i]) + (in.more != nullptr ? to_float(more.item[i]) : 0.0f);
    if (!in.relu) return d;
    const bool has_out = in.y != nullptr;
    return c.passes(has_out, has_out ? to_float(y.item[i]) : 0.0f, to_float(x.item[i]), i) ? d : 0.0f;
  }
};

/// BatchNormGradApply. 3 sizeof(T) bytes an element, with more, y and dresidual up to 6.
template <class T, class S = float>
struct BatchNormGradRows {
  static constexpr bool kIndependent = true;
  static constexpr int kRows = 2;  // under way
  BatchNormGradApply<T, S> of;
  ChannelRows walk;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const ChannelPlace place = ChannelPlace::of(lane, walk, kPack<T>);
    if (place.column >= walk.n) return;
    ChannelBehind<T> c;
    c.load(of.in, place.column);
    float plain[kPack<T>], along[kPack<T>];
    load_channels<T>(of.totals, place.column, plain);
    load_channels<T>(of.totals + walk.n, place.column, along);
    const float share = 1.0f / static_cast<float>(walk.rows);
    TRIREME_UNROLL
    for (int i = 0; i < kPack<T>; ++i) {  // dx = gain g - plain - (x - mean) along
      plain[i] *= share * c.gain[i];
      along[i] *= share * c.gain[i] * c.inverse[i];
    }
    for (int64_t row = place.row; row < walk.rows; row += kRows * place.step) {
      PackBehind<T> p[kRows] = {};
      TRIREME_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (row + r * place.step < walk.rows)
          p[r].load(of.in, (row + r * place.step) * walk.n + place.column);
      }
      TRIREME_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (row + r * place.step >= walk.rows) continue;
        const int64_t at = (row + r * place.step) * walk.n + place.column;
        Pack<T> dx, g;
        TRIREME_UNROLL
        for (int i = 0; i < kPack<T>; ++i) {
          const float d = p[r].gradient(of.in, c, i);
          const float apart = to_float(p[r].x.item[i]) - c.mean[i];
          dx.item[i] = from_float<T>(c.gain[i] * d - plain[i] - apart * along[i]);
          g.item[i] = from_float<T>(d);
        }
        *reinterpret_cast<Pack<T>*>(of.dx + at) = dx;
        if (of.dresidual != nullptr) *reinterpret_cast<Pack<T>*>(of.dresidual + at) = g;
      }
    }
  }
};

/// BatchNormGradSums.
template <class T, class S = float>
struct BatchNormGradRowSums {
  BatchNormGradSums<T, S> of;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const auto known = [&](int64_t column, int64_t) {
      ChannelBehind<T> c;
      c.load(of.in, column);
      return c;
    };
    const auto add = [&](const ChannelBehind<T>& c, int64_t row, int64_t column, float(&sum)[2][kPack<T>]) {
      PackBehind<T> p = {};
      p.load(of.in, row * of.grid.n + column);
      TRIREME_UNROLL
      for (int i = 0; i < kPack<T>; ++i) {
        const float g = p.gradient(of.in, c, i);
        sum[0][i] += g;
        sum[1][i] += g * (to_float(p.x.item[i]) - c.mean[i]) * c.inverse[i];
      }
    };
    column_pieces_of<T, 2>(lane, of.grid, known, add, [&](int64_t piece, int64_t column, const float* total) {
      of.sums[piece * of.grid.n + column] = total[0];
      of.sums[(of.grid.pieces + piece) * of.grid.n + column] = total[1];
    });
  }
};

}  // namespace trireme::cuda
