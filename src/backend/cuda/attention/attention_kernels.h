// Attention tile by tile: scores never reach memory, no sum has an order that depends on the launch. Source:
// Dao et al. 2022, algorithm 1, with sums that are divided once at the end.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/attention/attention_tile.h"

namespace trireme::cuda {

/// 64 queries and 64 keys; of long heads 32 and 32, because a block has 99 KiB of shared memory on some GPUs.
template <int kDim>
using AttendTile =
    std::conditional_t<(kDim > 128), AttentionTile<kDim, 32, 32, 8>, AttentionTile<kDim, 64, 64, 8>>;

/// y and log sum exp; a block a tile of queries of one head. 4 dim flop a query and key. For 64 channels a
/// thread's tile of keys is 4096 multiply-adds, 384 accesses to shared memory and some 700 other instructions
/// (softmax, masks, addresses): multiply-adds are 79 % of what is issued, the most that can be had of an
/// H100's 67 Tflop/s of f32; shared memory is half as busy. Memory: keys and values once for 64 queries, 32
/// flop a byte of f32, from the second-level cache. Expected: 55 to 65 % of 67 Tflop/s. Not measured.
template <class T, int kDim>
struct Attend {
  using Tile = AttendTile<kDim>;
  static constexpr int kMostThreads = Tile::kThreads;
  static constexpr int64_t kSharedBytes = (Tile::kRowFloats + Tile::kSharedFloats + Tile::kOtherFloats) * 4;
  AttentionView view;
  const T *q, *k, *v;
  T* y;
  float* lse;  // or null

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t tiles = (view.queries + Tile::kRows - 1) / Tile::kRows;
    for (int64_t i = lane.block(); i < view.batch * view.heads * tiles; i += lane.blocks()) {
      // Last queries first: under a causal mask they see the most keys.
      run(lane, {i / tiles / view.heads, i / tiles % view.heads, (tiles - 1 - i % tiles) * Tile::kRows});
    }
  }

 private:
  struct Place {
    int64_t b, h, first;
  };
  struct State {
    float top[Tile::kOwnRows], sum[Tile::kOwnRows];  // of the thread's own keys
    SeenKeys seen[Tile::kOwnRows];
    TileSums<Tile> y;
  };

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, Place at) const {
    float* queries = lane.template shared<float>();
    float* keys = queries + Tile::kRowFloats;
    float* values = keys + Tile::kSharedFloats;
    const int64_t kv = at.h / (view.heads / view.kv_heads);
    State state;
    TRIREME_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      state.top[i] = -INFINITY;
      state.sum[i] = 0;
      state.seen[i] = view.seen_by(at.b, at.first + Tile::down(lane) + i * Tile::kDown);
      TRIREME_UNROLL
      for (float& sum : state.y[i]) sum = 0;
    }
    lane.sync();  // the tile before may still be read
    load_rows<Tile, Tile::kRows>(lane, q + at.b * view.q.batch + at.h * view.q.head, view.q.seq,
                                 {at.first, view.queries, view.head_dim, view.packed.q}, queries);
    const T* k_head = k + at.b * view.k.batch + kv * view.k.head;
    const T* v_head = v + at.b * view.v.batch + kv * view.v.head;
    const KeyRange range = view.keys_of(at.b, at.first, at.first + Tile::kRows - 1);
    for (int64_t first = range.first / Tile::kOthers * Tile::kOthers; first < range.last;
         first += Tile::kOthers) {
      lane.sync();
      load_rows<Tile, Tile::kOthers>(lane, k_head, view.k.seq,
                                     {first, view.keys, view.head_dim, view.packed.k}, keys);
      // Behind the last key that a query sees values may be anything, which even a weight of 0 would let in.
      load_rows<Tile, Tile::kOthers>(lane, v_head, view.v.seq,
                                     {first, range.last, view.value_dim, view.packed.v}, values);
      lane.sync();
      TileProducts<Tile> score;
      multiply_rows<Tile>(lane, queries, keys, whole_channels(view.head_dim), score);
      soften(lane, at, first, score, state);
      lane.sync();  // keys are read: exponents take their place
      store_weights<Tile>(lane, score, keys);
      lane.sync();
      add_weighted<Tile>(lane, keys, values, state.y);
    }
    finish(lane, at, state);
  }

  /// Products -> exponents of their scores; corrects what was summed before for the new largest score.
  template <class Lane>
  TRIREME_DEVICE void soften(const Lane& lane, Place at, int64_t first, TileProducts<Tile>& score,
                             State& state) const {
    const int down = Tile::down(lane), across = Tile::across(lane);
    const auto key = [&](int j) { return first + across + j * Tile::kAcross; };
    to_scores<Tile>(
        view, score, [&](int i, int j) { return state.seen[i].has(key(j)); },
        [&](int i, int j) {
          return ScorePlace{at.b, at.h, at.first + down + i * Tile::kDown, key(j)};
        });
    TRIREME_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      float top = state.top[i];
      TRIREME_UNROLL
      for (float s : score[i]) top = s > top ? s : top;
      top = largest_across<Tile>(lane, top);
      const float base = top == -INFINITY ? 0.0f : top;  // a row without keys: exponents of -inf are 0
      const float before = expf(state.top[i] - base);
      state.sum[i] *= before;
      TRIREME_UNROLL
      for (float& p : score[i]) state.sum[i] += p = expf(p - base);
      TRIREME_UNROLL
      for (float& sum : state.y[i]) sum *= before;
      state.top[i] = top;
    }
  }

  template <class Lane>
  TRIREME_DEVICE void finish(const Lane& lane, Place at, State& state) const {
    TRIREME_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      const int64_t row = at.first + Tile::down(lane) + i * Tile::kDown;
      const float sum = sum_across<Tile>(lane, state.sum[i]);
      if (row >= view.queries) continue;
      const float scale = sum > 0 ? 1.0f / sum : 0.0f;
      TRIREME_UNROLL
      for (float& out : state.y[i]) out *= scale;
      store_sums<Tile>(lane, state.y[i], view.value_dim, view.packed.y,
                       y + at.b * view.y.batch + row * view.y.seq + at.h * view.y.head);
      if (lse != nullptr && Tile::across(lane) == 0)
        lse[(at.b * view.heads + at.h) * view.queries + row] = sum > 0 ? state.top[i] + logf(sum) : -INFINITY;
    }
  }
};

}  // namespace trireme::cuda
