// Attention tile by tile: a block owns 32 queries (or keys) and walks over tiles of the others in shared
// memory; kParts threads share a row and hold its channels in turn. Scores never reach memory, no sum has an
// order that depends on the launch. Source: Dao et al. 2022, algorithm 1.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/attention_view.h"

namespace trireme::cuda {

/// Threads and registers of a row of up to kDim channels.
template <int kDim>
struct AttentionTile {
  static constexpr int kRows = 32;
  static constexpr int kParts = kDim > 128 ? 8 : 4;  // threads of a row
  static constexpr int kEach = kDim / kParts;        // channels of a thread: part, part + kParts, ...
  static constexpr int kThreads = kRows * kParts;
  static constexpr int64_t kBytes = kRows * kDim * static_cast<int64_t>(sizeof(float));
};

/// The sum of a value over the threads of a row.
template <int kParts, class Lane>
TRIREME_DEVICE float row_sum(const Lane& lane, float value) {
  for (int mask = kParts / 2; mask > 0; mask /= 2) value += lane.shuffle_xor(value, mask);
  return value;
}

/// Rows [first, first + 32) of a projection into shared memory [32, kDim], zeros where there is none.
template <int kDim, class T, class Lane>
TRIREME_DEVICE void load_tile(const Lane& lane, const T* base, const AttentionStrides& at,
                              TileExtents extents, float* to) {
  for (int i = lane.thread(); i < AttentionTile<kDim>::kRows * kDim; i += lane.threads()) {
    const int row = i / kDim, channel = i % kDim;
    const bool is_there = extents.first + row < extents.rows && channel < extents.channels;
    to[i] = is_there ? to_float(base[(extents.first + row) * at.seq + channel]) : 0.0f;
  }
}

/// A thread's channels of one row.
template <int kDim, class T>
TRIREME_DEVICE void load_row(const T* row, int part, int64_t channels, float* out) {
  using Tile = AttentionTile<kDim>;
  for (int i = 0; i < Tile::kEach; ++i) {
    const int channel = i * Tile::kParts + part;
    out[i] = row != nullptr && channel < channels ? to_float(row[channel]) : 0.0f;
  }
}
template <int kDim, class T>
TRIREME_DEVICE void store_row(const float* in, int part, int64_t channels, T* row) {
  using Tile = AttentionTile<kDim>;
  for (int i = 0; i < Tile::kEach; ++i) {
    const int channel = i * Tile::kParts + part;
    if (channel < channels) row[channel] = from_float<T>(in[i]);
  }
}

/// A thread's share of the product of its row with a row in shared memory.
template <int kDim>
TRIREME_DEVICE float partial_dot(const float* own, const float* shared_row, int part) {
  using Tile = AttentionTile<kDim>;
  float sum = 0;
  for (int i = 0; i < Tile::kEach; ++i) sum += own[i] * shared_row[i * Tile::kParts + part];
  return sum;
}
template <int kDim>
TRIREME_DEVICE void add_scaled(float factor, const float* shared_row, int part, float* sum) {
  using Tile = AttentionTile<kDim>;
  for (int i = 0; i < Tile::kEach; ++i) sum[i] += factor * shared_row[i * Tile::kParts + part];
}

/// y and log sum exp; a block a tile of queries of one head.
template <class T, int kDim>
struct Attend {
  using Tile = AttentionTile<kDim>;
  static constexpr int kMostThreads = Tile::kThreads;
  static constexpr int64_t kSharedBytes = 2 * Tile::kBytes;
  static constexpr int kRun = 8;  // keys between two corrections
  AttentionView view;
  const T *q, *k, *v;
  T* y;
  float* lse;  // or null

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t tiles = (view.queries + Tile::kRows - 1) / Tile::kRows;
    for (int64_t i = lane.block(); i < view.batch * view.heads * tiles; i += lane.blocks()) {
      const int64_t head = i / tiles % view.heads, b = i / tiles / view.heads;
      run(lane, {b, head, i % tiles * Tile::kRows});
    }
  }

 private:
  struct Place {
    int64_t b, h, first;
  };
  /// A query and the first of its keys, which stands at row `j` of the tiles.
  struct Pair {
    int64_t row, key;
    int j;
  };
  struct State {
    float top = -INFINITY, sum = 0;
    float y[Tile::kEach] = {};
  };

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, Place at) const {
    float* keys = lane.template shared<float>();
    float* values = keys + Tile::kRows * kDim;
    const int part = lane.thread() % Tile::kParts;
    const int64_t row = at.first + lane.thread() / Tile::kParts;
    const int64_t kv = at.h / (view.heads / view.kv_heads);
    const T* own = q + at.b * view.q.batch + row * view.q.seq + at.h * view.q.head;
    float query[Tile::kEach];
    load_row<kDim>(row < view.queries ? own : nullptr, part, view.head_dim, query);
    const T* k_head = k + at.b * view.k.batch + kv * view.k.head;
    const T* v_head = v + at.b * view.v.batch + kv * view.v.head;
    State state;
    const KeyRange range = view.keys_of(at.b, at.first, at.first + Tile::kRows - 1);
    for (int64_t first = range.first / Tile::kRows * Tile::kRows; first < range.last; first += Tile::kRows) {
      lane.sync();
      load_tile<kDim>(lane, k_head, view.k, {first, view.keys, view.head_dim}, keys);
      load_tile<kDim>(lane, v_head, view.v, {first, view.keys, view.value_dim}, values);
      lane.sync();
      for (int j = 0; j < Tile::kRows; j += kRun) visit(lane, at, {row, first + j, j}, query, state);
    }
    if (row >= view.queries) return;
    const float scale = state.sum > 0 ? 1.0f / state.sum : 0.0f;
    for (float& value : state.y) value *= scale;
    store_row<kDim>(state.y, part, view.value_dim,
                    y + at.b * view.y.batch + row * view.y.seq + at.h * view.y.head);
    if (part == 0 && lse != nullptr)
      lse[(at.b * view.heads + at.h) * view.queries + row] =
          state.sum > 0 ? state.top + logf(state.sum) : -INFINITY;
  }

  /// kRun keys from the pair's on.
  template <class Lane>
  TRIREME_DEVICE void visit(const Lane& lane, Place at, Pair pair, const float* query, State& state) const {
    const auto [row, key, j] = pair;
    const float* keys = lane.template shared<float>();
    const float* values = keys + Tile::kRows * kDim;
    const int part = lane.thread() % Tile::kParts;
    float score[kRun], top = state.top;
    for (int r = 0; r < kRun; ++r) {
      const float sum = row_sum<Tile::kParts>(lane, partial_dot<kDim>(query, keys + (j + r) * kDim, part));
      score[r] = view.score(sum, at.b, at.h, row, key + r);
      top = score[r] > top ? score[r] : top;
    }
    if (top == -INFINITY) return;
    const float before = expf(state.top - top);
    state.sum *= before;
    for (float& value : state.y) value *= before;
    for (int r = 0; r < kRun; ++r) {
      const float p = expf(score[r] - top);
      state.sum += p;
      add_scaled<kDim>(p, values + (j + r) * kDim, part, state.y);
    }
    state.top = top;
  }
};

}  // namespace trireme::cuda
