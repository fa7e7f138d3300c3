// The gradients of attention tile by tile: probabilities are computed again from the log sum exp. Source: Dao
// et al. 2022, algorithm 4.
#pragma once

#include "backend/cuda/attention_kernels.h"

namespace trireme::cuda {

/// delta [batch, heads, queries] = sum over channels of dy y; a warp a row.
template <class T>
struct AttentionDelta {
  AttentionView view;
  const T *y, *dy;
  float* delta;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t warps = lane.threads() / kWarp, rows = view.batch * view.heads * view.queries;
    for (int64_t i = lane.block() * warps + lane.thread() / kWarp; i < rows; i += lane.blocks() * warps) {
      const int64_t b = i / view.queries / view.heads, h = i / view.queries % view.heads;
      const int64_t at = b * view.y.batch + i % view.queries * view.y.seq + h * view.y.head;
      float sum = 0;
      for (int64_t c = lane.thread() % kWarp; c < view.value_dim; c += kWarp)
        sum += to_float(dy[at + c]) * to_float(y[at + c]);
      for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
      if (lane.thread() % kWarp == 0) delta[i] = sum;
    }
  }
};

/// dq; a block a tile of queries of one head, over tiles of keys and values.
template <class T, int kDim>
struct AttendGradQueries {
  using Tile = AttentionTile<kDim>;
  static constexpr int kMostThreads = Tile::kThreads;
  static constexpr int64_t kSharedBytes = 2 * Tile::kBytes;
  AttentionView view;
  const T *q, *k, *v, *dy;
  const float *lse, *delta;
  T* dq;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t tiles = (view.queries + Tile::kRows - 1) / Tile::kRows;
    for (int64_t i = lane.block(); i < view.batch * view.heads * tiles; i += lane.blocks())
      run(lane, i / tiles / view.heads, i / tiles % view.heads, i % tiles * Tile::kRows);
  }

 private:
  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, int64_t b, int64_t h, int64_t first_row) const {
    float* keys = lane.template shared<float>();
    float* values = keys + Tile::kRows * kDim;
    const int part = lane.thread() % Tile::kParts;
    const int64_t row = first_row + lane.thread() / Tile::kParts, kv = h / (view.heads / view.kv_heads);
    const bool is_there = row < view.queries;
    float query[Tile::kEach], up[Tile::kEach], sum[Tile::kEach] = {};
    const T* own = q + b * view.q.batch + row * view.q.seq + h * view.q.head;
    const T* own_up = dy + b * view.y.batch + row * view.y.seq + h * view.y.head;
    load_row<kDim>(is_there ? own : nullptr, part, view.head_dim, query);
    load_row<kDim>(is_there ? own_up : nullptr, part, view.value_dim, up);
    const int64_t at = (b * view.heads + h) * view.queries + row;
    const float log_sum = is_there ? lse[at] : -INFINITY, d = is_there ? delta[at] : 0.0f;
    const KeyRange range = view.keys_of(b, first_row, first_row + Tile::kRows - 1);
    for (int64_t first = range.first / Tile::kRows * Tile::kRows; first < range.last; first += Tile::kRows) {
      lane.sync();
      load_tile<kDim>(lane, k + b * view.k.batch + kv * view.k.head, view.k,
                      {first, view.keys, view.head_dim}, keys);
      load_tile<kDim>(lane, v + b * view.v.batch + kv * view.v.head, view.v,
                      {first, view.keys, view.value_dim}, values);
      lane.sync();
      for (int j = 0; j < Tile::kRows; ++j) {
        const float dot = row_sum<Tile::kParts>(lane, partial_dot<kDim>(query, keys + j * kDim, part));
        const float along = row_sum<Tile::kParts>(lane, partial_dot<kDim>(up, values + j * kDim, part));
        const float p = probability(view.score(dot, b, h, row, first + j), log_sum);
        add_scaled<kDim>(p * (along - d) * view.scale, keys + j * kDim, part, sum);
      }
    }
    if (is_there)
      store_row<kDim>(sum, part, view.head_dim, dq + b * view.q.batch + row * view.q.seq + h * view.q.head);
  }
};

/// dk and dv; a block a tile of keys of one key head, over the query heads that read it and their tiles.
template <class T, int kDim>
struct AttendGradKeys {
  using Tile = AttentionTile<kDim>;
  static constexpr int kMostThreads = Tile::kThreads;
  static constexpr int64_t kSharedBytes = 2 * Tile::kBytes;
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
  /// A head, the first of a tile of its queries, and the thread's own key.
  struct Place {
    int64_t b, h, first, row;
  };
  struct Own {
    float key[Tile::kEach], value[Tile::kEach], dk[Tile::kEach] = {}, dv[Tile::kEach] = {};
  };

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, int64_t b, int64_t kv, int64_t first_row) const {
    const int part = lane.thread() % Tile::kParts;
    const int64_t row = first_row + lane.thread() / Tile::kParts, group = view.heads / view.kv_heads;
    const bool is_there = row < view.keys;
    const int64_t k_at = b * view.k.batch + row * view.k.seq + kv * view.k.head;
    const int64_t v_at = b * view.v.batch + row * view.v.seq + kv * view.v.head;
    Own own;
    load_row<kDim>(is_there ? k + k_at : nullptr, part, view.head_dim, own.key);
    load_row<kDim>(is_there ? v + v_at : nullptr, part, view.value_dim, own.value);
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      for (int64_t first = 0; first < view.queries; first += Tile::kRows) {
        const KeyRange seen = view.keys_of(b, first, first + Tile::kRows - 1);
        if (seen.last <= first_row || seen.first >= first_row + Tile::kRows) continue;
        visit(lane, {b, h, first, row}, own);
      }
    }
    if (!is_there) return;
    store_row<kDim>(own.dk, part, view.head_dim, dk + k_at);
    store_row<kDim>(own.dv, part, view.value_dim, dv + v_at);
  }

  template <class Lane>
  TRIREME_DEVICE void visit(const Lane& lane, Place at_tile, Own& own) const {
    const auto [b, h, first, row] = at_tile;
    float* queries = lane.template shared<float>();
    float* ups = queries + Tile::kRows * kDim;
    const int part = lane.thread() % Tile::kParts;
    lane.sync();
    load_tile<kDim>(lane, q + b * view.q.batch + h * view.q.head, view.q,
                    {first, view.queries, view.head_dim}, queries);
    load_tile<kDim>(lane, dy + b * view.y.batch + h * view.y.head, view.y,
                    {first, view.queries, view.value_dim}, ups);
    lane.sync();
    for (int i = 0; i < Tile::kRows && first + i < view.queries; ++i) {
      const int64_t at = (b * view.heads + h) * view.queries + first + i;
      const float dot = row_sum<Tile::kParts>(lane, partial_dot<kDim>(own.key, queries + i * kDim, part));
      const float along = row_sum<Tile::kParts>(lane, partial_dot<kDim>(own.value, ups + i * kDim, part));
      const float p = probability(view.score(dot, b, h, first + i, row), lse[at]);
      add_scaled<kDim>(p * (along - delta[at]) * view.scale, queries + i * kDim, part, own.dk);
      add_scaled<kDim>(p, ups + i * kDim, part, own.dv);
    }
  }
};

}  // namespace trireme::cuda
