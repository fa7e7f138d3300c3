// Tiles of attention in shared memory and registers: products of rows with rows, and of weights with rows, as
// every kernel of attention takes them.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/attention/attention_view.h"
#include "backend/cuda/device/step.h"

namespace trireme::cuda {

/// A block owns kRows_ rows (queries or keys) and walks over the others kOthers_ at a time. Its threads stand
/// in a grid of kDown_ x 16: thread (down, across) holds rows down, down + kDown, ..., of the others across,
/// across + 16, ..., and kDim / 16 channels. With 8 x 4 products a thread takes 12 accesses of 16 bytes to
/// shared memory for 128 multiply-adds; a warp's are 16 cycles of shared memory (128 bytes a cycle) beside 32
/// of its SM's 128 lanes, so that multiply-adds are the bound: 2 flop each.
template <int kDim_, int kRows_, int kOthers_, int kDown_>
struct AttentionTile {
  static constexpr int kDim = kDim_, kRows = kRows_, kOthers = kOthers_, kDown = kDown_;
  static constexpr int kAcross = 16, kThreads = kDown * kAcross;
  static constexpr int kOwnRows = kRows / kDown, kOwnOthers = kOthers / kAcross;
  static constexpr int kWide = kDim >= 64 ? 4 : kDim / kAcross;  // channels of one access
  static constexpr int kChunks = kDim / kAcross / kWide;
  // Rows are shifted by 4 banks each, so that accesses of 16 bytes of 8 rows fall into all 32.
  static constexpr int kStride = kDim + 4, kWeightStride = kOthers + 4;
  static constexpr int kRowFloats = kRows * kStride, kWeightFloats = kRows * kWeightStride;
  static constexpr int kOtherFloats = kOthers * kStride;
  /// Of the others' buffer where weights take its place once it is read.
  static constexpr int kSharedFloats = kOtherFloats > kWeightFloats ? kOtherFloats : kWeightFloats;

  /// A thread's place in the grid.
  template <class Lane>
  static TRIREME_DEVICE int down(const Lane& lane) {
    return lane.thread() / kAcross;
  }
  template <class Lane>
  static TRIREME_DEVICE int across(const Lane& lane) {
    return lane.thread() % kAcross;
  }
};

/// A thread's products [rows, others] and its sums [rows, channels].
template <class Tile>
using TileProducts = float[Tile::kOwnRows][Tile::kOwnOthers];
template <class Tile>
using TileSums = float[Tile::kOwnRows][Tile::kChunks * Tile::kWide];

/// Rows [first, first + kCount) of a head into shared memory [kCount, kStride], zeros where there is none.
template <class Tile, int kCount, class T, class Lane>
TRIREME_DEVICE void load_rows(const Lane& lane, const T* head, int64_t stride, TileExtents extents,
                              float* to) {
  constexpr int kPacks = Tile::kDim / kPack<T>;
  for (int i = lane.thread(); i < kCount * kPacks; i += Tile::kThreads) {
    const int row = i / kPacks, channel = i % kPacks * kPack<T>;
    const bool is_there = extents.first + row < extents.rows;
    const int64_t left = is_there ? extents.channels - channel : 0;
    const T* from = head + (extents.first + row) * stride + channel;
    float v[kPack<T>] = {};
    if (extents.is_packed) {
      if (left > 0) load_step<kPack<T>>(from, v);
    } else {
      TRIREME_UNROLL
      for (int j = 0; j < kPack<T>; ++j) v[j] = j < left ? to_float(from[j]) : 0.0f;
    }
    TRIREME_UNROLL
    for (int j = 0; j < kPack<T>; j += 4) store_step<4>(v + j, to + row * Tile::kStride + channel + j);
  }
}

/// products[i][j] = row i times other j over the first `channels` channels.
template <class Tile, class Lane>
TRIREME_DEVICE void multiply_rows(const Lane& lane, const float* rows, const float* others, int channels,
                                  TileProducts<Tile>& products) {
  const float* own = rows + Tile::down(lane) * Tile::kStride;
  const float* other = others + Tile::across(lane) * Tile::kStride;
  TRIREME_UNROLL
  for (auto& row : products) {
    TRIREME_UNROLL
    for (float& v : row) v = 0;
  }
  for (int c = 0; c < channels; c += 4) {
    float a[Tile::kOwnRows][4];
    TRIREME_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i) load_step<4>(own + i * Tile::kDown * Tile::kStride + c, a[i]);
    TRIREME_UNROLL
    for (int j = 0; j < Tile::kOwnOthers; ++j) {
      float b[4];
      load_step<4>(other + j * Tile::kAcross * Tile::kStride + c, b);
      TRIREME_UNROLL
      for (int i = 0; i < Tile::kOwnRows; ++i) {
        TRIREME_UNROLL
        for (int e = 0; e < 4; ++e) products[i][j] += a[i][e] * b[e];
      }
    }
  }
}

/// sums[i] += the weights of row i [kOthers] times the others [kOthers, channels].
template <class Tile, class Lane>
TRIREME_DEVICE void add_weighted(const Lane& lane, const float* weights, const float* others,
                                 TileSums<Tile>& sums) {
  const float* own = weights + Tile::down(lane) * Tile::kWeightStride;
  const float* other = others + Tile::across(lane) * Tile::kWide;
  for (int o = 0; o < Tile::kOthers; o += 4) {
    float w[Tile::kOwnRows][4];
    TRIREME_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i)
      load_step<4>(own + i * Tile::kDown * Tile::kWeightStride + o, w[i]);
    TRIREME_UNROLL
    for (int e = 0; e < 4; ++e) {
      TRIREME_UNROLL
      for (int c = 0; c < Tile::kChunks; ++c) {
        float v[Tile::kWide];
        load_step<Tile::kWide>(other + (o + e) * Tile::kStride + c * Tile::kAcross * Tile::kWide, v);
        TRIREME_UNROLL
        for (int i = 0; i < Tile::kOwnRows; ++i) {
          TRIREME_UNROLL
          for (int k = 0; k < Tile::kWide; ++k) sums[i][c * Tile::kWide + k] += w[i][e] * v[k];
        }
      }
    }
  }
}

/// Products of queries and keys -> scores; -inf where sees(i, j) is false. at(i, j): the score's place.
template <class Tile, class Sees, class At>
TRIREME_DEVICE void to_scores(const AttentionView& view, TileProducts<Tile>& products, Sees sees, At at) {
  const bool is_plain = view.is_plain();  // of the whole launch: what masks need stays out of the usual way
  TRIREME_UNROLL
  for (int i = 0; i < Tile::kOwnRows; ++i) {
    TRIREME_UNROLL
    for (int j = 0; j < Tile::kOwnOthers; ++j)
      products[i][j] = sees(i, j) ? products[i][j] * view.scale : -INFINITY;
  }
  if (is_plain) return;
  TRIREME_UNROLL
  for (int i = 0; i < Tile::kOwnRows; ++i) {
    TRIREME_UNROLL
    for (int j = 0; j < Tile::kOwnOthers; ++j) {
      if (products[i][j] != -INFINITY) products[i][j] = view.capped(products[i][j], at(i, j));
    }
  }
}

/// A thread's products into shared memory, as add_weighted reads them.
template <class Tile, class Lane>
TRIREME_DEVICE void store_weights(const Lane& lane, const TileProducts<Tile>& products, float* weights) {
  TRIREME_UNROLL
  for (int i = 0; i < Tile::kOwnRows; ++i) {
    float* row = weights + (Tile::down(lane) + i * Tile::kDown) * Tile::kWeightStride + Tile::across(lane);
    TRIREME_UNROLL
    for (int j = 0; j < Tile::kOwnOthers; ++j) row[j * Tile::kAcross] = products[i][j];
  }
}

/// A thread's sums of row i into the row's channels at `row`.
template <class Tile, class T, class Lane>
TRIREME_DEVICE void store_sums(const Lane& lane, const float* sums, int64_t channels, bool is_packed,
                               T* row) {
  TRIREME_UNROLL
  for (int c = 0; c < Tile::kChunks; ++c) {
    const int first = (c * Tile::kAcross + Tile::across(lane)) * Tile::kWide;
    const float* from = sums + c * Tile::kWide;
    if (is_packed && first < channels) {  // then channels are whole packs, and chunks parts of these
      store_step<Tile::kWide>(from, row + first);
      continue;
    }
    TRIREME_UNROLL
    for (int k = 0; k < Tile::kWide; ++k) {
      if (first + k < channels) row[first + k] = from_float<T>(from[k]);
    }
  }
}

/// The sum of a value, or the largest, over the threads of a row.
template <class Tile, class Lane>
TRIREME_DEVICE float sum_across(const Lane& lane, float value) {
  for (int mask = Tile::kAcross / 2; mask > 0; mask /= 2) value += lane.shuffle_xor(value, mask);
  return value;
}
template <class Tile, class Lane>
TRIREME_DEVICE float largest_across(const Lane& lane, float value) {
  for (int mask = Tile::kAcross / 2; mask > 0; mask /= 2) {
    const float other = lane.shuffle_xor(value, mask);
    value = other > value ? other : value;
  }
  return value;
}

/// Channels in steps of 4.
TRIREME_DEVICE int whole_channels(int64_t channels) { return static_cast<int>((channels + 3) / 4 * 4); }

}  // namespace trireme::cuda
