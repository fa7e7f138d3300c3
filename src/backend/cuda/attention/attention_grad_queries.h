// The gradient of queries of attention tile by tile: probabilities are computed again from the log sum exp.
// Source: Dao et al. 2022, algorithm 4, in two kernels, so that every sum is one block's and has one order.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/attention/attention_tile.h"

namespace trireme::cuda {

/// delta [batch, heads, queries] = sum over channels of dy y; a warp a row. 2 sizeof(T) bytes a channel.
template <class T>
struct AttentionDelta {
  static constexpr int kMostThreads = 256;
  AttentionView view;
  const T *y, *dy;
  float* delta;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t warps = lane.threads() / kWarp, rows = view.batch * view.heads * view.queries;
    const int in_warp = lane.thread() % kWarp;
    for (int64_t i = lane.block() * warps + lane.thread() / kWarp; i < rows; i += lane.blocks() * warps) {
      const int64_t b = i / view.queries / view.heads, h = i / view.queries % view.heads;
      const int64_t at = b * view.y.batch + i % view.queries * view.y.seq + h * view.y.head;
      float sum = 0;
      if (view.packed.y) {
        for (int64_t c = in_warp * kPack<T>; c < view.value_dim; c += kWarp * kPack<T>) {
          float up[kPack<T>], out[kPack<T>];
          load_step<kPack<T>>(dy + at + c, up);
          load_step<kPack<T>>(y + at + c, out);
          TRIREME_UNROLL
          for (int j = 0; j < kPack<T>; ++j) sum += up[j] * out[j];
        }
      } else {
        for (int64_t c = in_warp; c < view.value_dim; c += kWarp)
          sum += to_float(dy[at + c]) * to_float(y[at + c]);
      }
      for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
      if (in_warp == 0) delta[i] = sum;
    }
  }
};

template <int kDim>
using GradQueriesTile = std::conditional_t<
    (kDim > 128), AttentionTile<kDim, 32, 16, 8>,
    std::conditional_t<(kDim > 64), AttentionTile<kDim, 64, 32, 8>, AttentionTile<kDim, 64, 64, 8>>>;

/// dq; a block a tile of queries of one head, over tiles of keys and values. 6 dim flop a query and key,
/// bounds as Attend's.
template <class T, int kDim>
struct AttendGradQueries {
  using Tile = GradQueriesTile<kDim>;
  static constexpr int kMostThreads = Tile::kThreads;
  static constexpr int64_t kSharedBytes =
      (2 * Tile::kRowFloats + Tile::kOtherFloats + Tile::kSharedFloats) * 4;
  AttentionView view;
  const T *q, *k, *v, *dy;
  const float *lse, *delta;
  T* dq;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t tiles = (view.queries + Tile::kRows - 1) / Tile::kRows;
    for (int64_t i = lane.block(); i < view.batch * view.heads * tiles; i += lane.blocks())
      run(lane, {i / tiles / view.heads, i / tiles % view.heads, (tiles - 1 - i % tiles) * Tile::kRows});
  }

 private:
  /// A head, the first of a tile of its queries, and of the keys that it meets.
  struct Place {
    int64_t b, h, first, key = 0;
  };
  /// Of the thread's rows.
  struct State {
    SeenKeys seen[Tile::kOwnRows];
    float lse[Tile::kOwnRows], delta[Tile::kOwnRows];
    TileSums<Tile> dq;
  };

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, Place at) const {
    float* queries = lane.template shared<float>();
    float* ups = queries + Tile::kRowFloats;
    float* keys = ups + Tile::kRowFloats;
    float* values = keys + Tile::kOtherFloats;
    const int64_t kv = at.h / (view.heads / view.kv_heads);
    lane.sync();  // the tile before may still be read
    load_rows<Tile, Tile::kRows>(lane, q + at.b * view.q.batch + at.h * view.q.head, view.q.seq,
                                 {at.first, view.queries, view.head_dim, view.packed.q}, queries);
    load_rows<Tile, Tile::kRows>(lane, dy + at.b * view.y.batch + at.h * view.y.head, view.y.seq,
                                 {at.first, view.queries, view.value_dim, view.packed.y}, ups);
    State state;
    TRIREME_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      const int64_t row = at.first + Tile::down(lane) + i * Tile::kDown;
      const int64_t place = (at.b * view.heads + at.h) * view.queries + row;
      state.seen[i] = view.seen_by(at.b, row);
      state.lse[i] = row < view.queries ? lse[place] : -INFINITY;
      state.delta[i] = row < view.queries ? delta[place] : 0.0f;
      TRIREME_UNROLL
      for (float& sum : state.dq[i]) sum = 0;
    }
    const KeyRange range = view.keys_of(at.b, at.first, at.first + Tile::kRows - 1);
    for (int64_t first = range.first / Tile::kOthers * Tile::kOthers; first < range.last;
         first += Tile::kOthers) {
      lane.sync();
      load_rows<Tile, Tile::kOthers>(lane, k + at.b * view.k.batch + kv * view.k.head, view.k.seq,
                                     {first, view.keys, view.head_dim, view.packed.k}, keys);
      load_rows<Tile, Tile::kOthers>(lane, v + at.b * view.v.batch + kv * view.v.head, view.v.seq,
                                     {first, view.keys, view.value_dim, view.packed.v}, values);
      lane.sync();
      TileProducts<Tile> score, along;
      multiply_rows<Tile>(lane, queries, keys, whole_channels(view.head_dim), score);
      multiply_rows<Tile>(lane, ups, values, whole_channels(view.value_dim), along);
      at.key = first;
      weigh(lane, at, state, score, along);
      lane.sync();  // values are read: the gradients of scores take their place
      store_weights<Tile>(lane, along, values);
      lane.sync();
      add_weighted<Tile>(lane, values, keys, state.dq);
    }
    TRIREME_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      const int64_t row = at.first + Tile::down(lane) + i * Tile::kDown;
      if (row < view.queries)
        store_sums<Tile>(lane, state.dq[i], view.head_dim, view.packed.q,
                         dq + at.b * view.q.batch + row * view.q.seq + at.h * view.q.head);
    }
  }

  /// The gradients of scores in `along`, which holds the products of dy and values.
  template <class Lane>
  TRIREME_DEVICE void weigh(const Lane& lane, Place at, const State& state, TileProducts<Tile>& score,
                            TileProducts<Tile>& along) const {
    const int down = Tile::down(lane), across = Tile::across(lane);
    const auto key = [&](int j) { return at.key + across + j * Tile::kAcross; };
    to_scores<Tile>(
        view, score, [&](int i, int j) { return state.seen[i].has(key(j)); },
        [&](int i, int j) {
          return ScorePlace{at.b, at.h, at.first + down + i * Tile::kDown, key(j)};
        });
    TRIREME_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      TRIREME_UNROLL
      for (int j = 0; j < Tile::kOwnOthers; ++j)
        along[i][j] = probability(score[i][j], state.lse[i]) * (along[i][j] - state.delta[i]) * view.scale;
    }
  }
};

}  // namespace trireme::cuda
