// The gradients of keys and values of attention, tile by tile; see attention_grad_queries.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/attention/attention_tile.h"

namespace trireme::cuda {

template <int kDim>
using GradKeysTile = std::conditional_t<
    (kDim > 128), AttentionTile<kDim, 16, 16, 8>,
    std::conditional_t<(kDim > 64), AttentionTile<kDim, 32, 32, 8>, AttentionTile<kDim, 64, 32, 8>>>;

/// dk and dv; a block a tile of keys of one key head, over the query heads that read it and their tiles. 8
/// dim flop a query and key, bounds as Attend's.
template <class T, int kDim>
struct AttendGradKeys {
  using Tile = GradKeysTile<kDim>;
  static constexpr int kMostThreads = Tile::kThreads;
  static constexpr int64_t kSharedBytes =
      2 * (Tile::kRowFloats + Tile::kOtherFloats + Tile::kWeightFloats) * 4;
  AttentionView view;
  const T *q, *k, *v, *dy;
  const float *lse, *delta;
  T *dk, *dv;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t tiles = (view.keys + Tile::kRows - 1) / Tile::kRows;
    for (int64_t i = lane.block(); i < view.batch * view.kv_heads * tiles; i += lane.blocks())
      run(lane, i / tiles / view.kv_heads, i / tiles % view.kv_heads, i % tiles * Tile::kRows);
  }

 private:
  /// A head, the first of a tile of its queries, and the block's first key.
  struct Place {
    int64_t b, h, first, key;
  };
  struct Sums {
    TileSums<Tile> dk, dv;
  };
  struct Shared {
    float *keys, *values, *queries, *ups, *weights, *gradients;
  };
  template <class Lane>
  TRIREME_DEVICE Shared shared(const Lane& lane) const {
    float* keys = lane.template shared<float>();
    float* queries = keys + 2 * Tile::kRowFloats;
    float* weights = queries + 2 * Tile::kOtherFloats;
    return {keys,    keys + Tile::kRowFloats,      queries, queries + Tile::kOtherFloats,
            weights, weights + Tile::kWeightFloats};
  }

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, int64_t b, int64_t kv, int64_t first_key) const {
    const Shared at = shared(lane);
    const int64_t group = view.heads / view.kv_heads;
    lane.sync();  // the tile before may still be read
    load_rows<Tile, Tile::kRows>(lane, k + b * view.k.batch + kv * view.k.head, view.k.seq,
                                 {first_key, view.keys, view.head_dim, view.packed.k}, at.keys);
    load_rows<Tile, Tile::kRows>(lane, v + b * view.v.batch + kv * view.v.head, view.v.seq,
                                 {first_key, view.keys, view.value_dim, view.packed.v}, at.values);
    Sums sums;
    TRIREME_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      TRIREME_UNROLL
      for (float& sum : sums.dk[i]) sum = 0;
      TRIREME_UNROLL
      for (float& sum : sums.dv[i]) sum = 0;
    }
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      for (int64_t first = 0; first < view.queries; first += Tile::kOthers) {
        const KeyRange seen = view.keys_of(b, first, first + Tile::kOthers - 1);
        if (seen.last <= first_key || seen.first >= first_key + Tile::kRows) continue;
        visit(lane, {b, h, first, first_key}, sums);
      }
    }
    TRIREME_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      const int64_t key = first_key + Tile::down(lane) + i * Tile::kDown;
      if (key >= view.keys) continue;
      store_sums<Tile>(lane, sums.dk[i], view.head_dim, view.packed.k,
                       dk + b * view.k.batch + key * view.k.seq + kv * view.k.head);
      store_sums<Tile>(lane, sums.dv[i], view.value_dim, view.packed.v,
                       dv + b * view.v.batch + key * view.v.seq + kv * view.v.head);
    }
  }

  template <class Lane>
  TRIREME_DEVICE void visit(const Lane& lane, Place place, Sums& sums) const {
    const Shared at = shared(lane);
    lane.sync();
    load_rows<Tile, Tile::kOthers>(lane, q + place.b * view.q.batch + place.h * view.q.head, view.q.seq,
                                   {place.first, view.queries, view.head_dim, view.packed.q}, at.queries);
    load_rows<Tile, Tile::kOthers>(lane, dy + place.b * view.y.batch + place.h * view.y.head, view.y.seq,
                                   {place.first, view.queries, view.value_dim, view.packed.y}, at.ups);
    lane.sync();
    TileProducts<Tile> score, along;
    multiply_rows<Tile>(lane, at.keys, at.queries, whole_channels(view.head_dim), score);
    multiply_rows<Tile>(lane, at.values, at.ups, whole_channels(view.value_dim), along);
    weigh(lane, place, score, along);
    store_weights<Tile>(lane, score, at.weights);
    store_weights<Tile>(lane, along, at.gradients);
    lane.sync();
    add_weighted<Tile>(lane, at.weights, at.ups, sums.dv);
    add_weighted<Tile>(lane, at.gradients, at.queries, sums.dk);
  }

  /// Products of queries and keys -> probabilities; those of dy and values -> gradients of scores.
  template <class Lane>
  TRIREME_DEVICE void weigh(const Lane& lane, Place at, TileProducts<Tile>& score,
                            TileProducts<Tile>& along) const {
    const int down = Tile::down(lane), across = Tile::across(lane);
    SeenKeys seen[Tile::kOwnOthers];
    float log_sum[Tile::kOwnOthers], d[Tile::kOwnOthers];
    TRIREME_UNROLL
    for (int j = 0; j < Tile::kOwnOthers; ++j) {
      const int64_t query = at.first + across + j * Tile::kAcross;
      const int64_t row = (at.b * view.heads + at.h) * view.queries + query;
      seen[j] = view.seen_by(at.b, query);
      log_sum[j] = query < view.queries ? lse[row] : -INFINITY;
      d[j] = query < view.queries ? delta[row] : 0.0f;
    }
    const auto key = [&](int i) { return at.key + down + i * Tile::kDown; };
    to_scores<Tile>(
        view, score, [&](int i, int j) { return seen[j].has(key(i)); },
        [&](int i, int j) {
          return ScorePlace{at.b, at.h, at.first + across + j * Tile::kAcross, key(i)};
        });
    TRIREME_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      TRIREME_UNROLL
      for (int j = 0; j < Tile::kOwnOthers; ++j) {
        score[i][j] = probability(score[i][j], log_sum[j]);
        along[i][j] = score[i][j] * (along[i][j] - d[j]) * view.scale;
      }
    }
  }
};

}  // namespace trireme::cuda
