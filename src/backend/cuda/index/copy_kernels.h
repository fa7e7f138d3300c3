// Kernels that move elements along steps.
#pragma once

#include <cstdint>

#include "backend/cuda/index/copy.h"
#include "backend/cuda/device/divide.h"
#include "backend/cuda/device/turned_tile.h"

namespace trireme::cuda {

/// 16 bytes as one element.
struct alignas(16) Wide {
  uint64_t part[2];
};

/// Extents with the steps of both sides; the last dimension turns fastest.
struct CopyWalk {
  Divider extent[kCopyRank];
  int64_t x_step[kCopyRank], y_step[kCopyRank];
  int rank = 0;

  /// Adds where index i lies to both places.
  TRIREME_DEVICE void go(int64_t i, int64_t& x, int64_t& y) const {
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t at = extent[d].step(i);
      x += at * x_step[d];
      y += at * y_step[d];
    }
  }
};

/// One element of up to 16 bytes a thread and turn, in the order of y; 2 sizeof(T) bytes an element.
template <class T>
struct CopyAlong {
  static constexpr bool kIndependent = true;
  const T* x;
  T* y;
  CopyWalk walk;
  int64_t count;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < count; i += stride) {
      int64_t from = 0, to = 0;
      walk.go(i, from, to);
      y[to] = x[from];
    }
  }
};

/// x's fast dimension is another than y's. 2 sizeof(T) bytes an element.
template <class T>
struct CopyTiles {
  static constexpr int kTile = TurnedTile<T>::kTile;
  const T* x;
  T* y;
  CopyWalk walk;                     // the other dimensions
  int64_t tiles;                     // of all
  Divider down, across;              // tiles along x's slow and fast dimension
  int64_t slow, fast;                // extents
  int64_t x_slow_step, y_fast_step;  // of the slow dimension in x, of the fast one in y; 1 the other way
  TurnedTile<T> turned;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t t = lane.block(); t < tiles; t += lane.blocks()) {
      int64_t rest = t, from = 0, to = 0;
      const int64_t f0 = across.step(rest) * kTile, s0 = down.step(rest) * kTile;
      walk.go(rest, from, to);
      turned.move(lane, {x + from + s0 * x_slow_step + f0, y + to + f0 * y_fast_step + s0, x_slow_step,
                         y_fast_step, slow - s0, fast - f0});
    }
  }
};

/// y [count] of 16-byte elements, then `tail` bytes; all from a repeated pattern.
struct Fill {
  static constexpr bool kIndependent = true;
  Wide* y;
  Wide pattern;
  int64_t count;
  int tail;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t first = lane.block() * lane.threads() + lane.thread();
    for (int64_t i = first; i < count; i += lane.blocks() * lane.threads()) y[i] = pattern;
    if (first < tail) {
      const auto byte = static_cast<int>(first);
      reinterpret_cast<uint8_t*>(y + count)[byte] =
          static_cast<uint8_t>(pattern.part[byte / 8] >> (byte % 8 * 8));
    }
  }
};

/// One element a thread and turn; 2 sizeof(T) bytes an element.
template <class T>
struct Pad {
  static constexpr bool kIndependent = true;
  const T *x, *value;
  T* y;
  Divider y_extent[kCopyRank];
  int64_t x_extent[kCopyRank], before[kCopyRank];
  int rank;
  PadMode mode;
  int64_t count;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < count; i += stride) {
      int64_t rest = i, from = 0, step = 1;
      bool inside = true;
      for (int d = rank - 1; d >= 0; --d) {
        const int64_t at = source(y_extent[d].step(rest) - before[d], x_extent[d]);
        inside = inside && at >= 0;
        from += at * step;
        step *= x_extent[d];
      }
      y[i] = inside ? x[from] : value != nullptr ? *value : T{};
    }
  }

 private:
  /// The index in [0, n) that i stands for, -1: none.
  TRIREME_DEVICE int64_t source(int64_t i, int64_t n) const {
    if (i >= 0 && i < n) return i;
    if (mode == PadMode::constant || n == 0) return -1;
    if (mode == PadMode::edge) return i < 0 ? 0 : n - 1;
    if (mode == PadMode::wrap) return (i % n + n) % n;
    if (n == 1) return 0;
    const int64_t period = 2 * (n - 1), k = (i % period + period) % period;
    return k < n ? k : period - k;
  }
};

}  // namespace trireme::cuda
