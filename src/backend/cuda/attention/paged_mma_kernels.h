// Prompts over pages on tensor cores: a block takes a tile of query vectors of a key head over all their
// keys.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/dense/mma_tiles.h"
#include "backend/cuda/attention/mma_state.h"
#include "backend/cuda/attention/paged_attention.h"
#include "backend/cuda/attention/paged_view.h"

namespace trireme::cuda {

/// Sequences of more than kFewRows new tokens, 16-bit queries and pages, heads of a multiple of 8 channels up
/// to kDim. A warp owns 16 query vectors (new tokens times heads of the group, so that the group shares the
/// keys); keys and values pass through shared memory kKeys at a time, the next ones under way meanwhile.
/// Scores, softmax and sums in f32, probabilities rounded to T for the product with values. Dao et al. 2022.
/// 4 dim flop a vector and key.
template <class T, int kDim>
struct PagedMma {
  static constexpr int kThreads = 128, kMostThreads = kThreads, kVectors = kThreads / kWarp * 16;
  static constexpr int kKeys = 64, kChunk = 8, kChunks = kDim / kChunk;  // channels of 16 bytes
  // Rows of both tiles are shifted against each other so that a warp's reads fall into all banks.
  static constexpr int kRow = kDim + 8;
  static constexpr int64_t kTileBytes = kKeys * kRow * 2, kPlaceBytes = kKeys * 8;
  static constexpr int64_t kSharedBytes = 2 * (2 * kTileBytes + kPlaceBytes);
  PagedView view;
  const T *q, *k_pages, *v_pages;
  T* y;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    if (!has_work(lane)) return;
    int64_t before = 0;  // tasks of the sequences before this one
    for (int64_t s = 0; s < view.sequences; ++s) {
      const int64_t fresh = view.fresh(s), vectors = fresh * view.group();
      if (fresh <= kFewRows) continue;
      const int64_t tiles = (vectors + kVectors - 1) / kVectors;
      // The first of this block's tasks: number i with (before + i) % blocks == block.
      int64_t i = (lane.block() - before % lane.blocks() + lane.blocks()) % lane.blocks();
      for (; i < tiles * view.kv_heads; i += lane.blocks())
        run(lane, {s, i % view.kv_heads, i / view.kv_heads * kVectors, vectors});
      before += tiles * view.kv_heads;
    }
  }

 private:
  struct Place {
    int64_t sequence, kv, first, vectors;
  };
  using State = MmaState<kDim, kKeys>;

  /// Whether a sequence has that many new tokens; in a step of decoding none does. A warp asks 32 at a time.
  template <class Lane>
  TRIREME_DEVICE bool has_work(const Lane& lane) const {
    int has = 0;
    for (int64_t s = lane.thread() % kWarp; s < view.sequences; s += kWarp)
      has |= view.fresh(s) > kFewRows ? 1 : 0;
    for (int mask = kWarp / 2; mask > 0; mask /= 2) has |= lane.shuffle_xor(has, mask);
    return has != 0;
  }

  /// Element where a query vector's channels begin.
  TRIREME_DEVICE int64_t vector_at(Place at, int64_t vector) const {
    const int64_t row = view.starts[at.sequence] + vector / view.group();
    return (row * view.heads + at.kv * view.group() + vector % view.group()) * view.dim;
  }

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, Place at) const {
    const int group = lane.thread() % kWarp / 4, pair = lane.thread() % 4 * 2;
    const int64_t own = at.first + lane.thread() / kWarp * 16 + group;
    uint32_t query[kDim / 16][4];
    State state;
    for (int r = 0; r < 2; ++r) {
      const int64_t vector = own + 8 * r;
      const bool is_there = vector < at.vectors;
      state.seen[r] = is_there ? view.seen(at.sequence, vector / view.group()) : 0;
      const T* from = q + (is_there ? vector_at(at, vector) : 0);
      for (int step = 0; step < kDim / 16; ++step) {
        for (int h = 0; h < 2; ++h) {
          const int channel = step * 16 + h * 8 + pair;
          const bool is_read = is_there && channel < view.dim;
          query[step][r + 2 * h] = is_read ? *reinterpret_cast<const uint32_t*>(from + channel) : 0;
        }
      }
    }
    const int64_t last = at.first + kVectors < at.vectors ? at.first + kVectors : at.vectors;
    const int64_t end = view.seen(at.sequence, (last - 1) / view.group());
    lane.sync();  // what was before may still be read
    find_places(lane, at, 0, end);
    find_places(lane, at, kKeys, end);
    lane.sync();
    load_tiles(lane, 0, end);
    for (int64_t token = 0; token < end; token += kKeys) {
      wait_for_copies();
      lane.sync();
      load_tiles(lane, token + kKeys, end);
      find_places(lane, at, token + 2 * kKeys, end);
      float score[kKeys / 8][4];
      score_tile(lane, token, query, score);
      state.soften(lane, token, view.scale, score);
      add_values(lane, token, score, state);
    }
    for (int r = 0; r < 2; ++r) {
      if (own + 8 * r >= at.vectors) continue;
      const float scale = state.sum[r] > 0 ? 1.0f / state.sum[r] : 0.0f;
      T* to = y + vector_at(at, own + 8 * r);
      for (int d = 0; d < kDim / 8; ++d) {
        if (d * 8 + pair >= view.dim) continue;
        for (int i = 0; i < 2; ++i) to[d * 8 + pair + i] = from_float<T>(state.y[d][2 * r + i] * scale);
      }
    }
  }

  /// Shared memory, twice: keys and values [kKeys, kRow] of kKeys tokens, and where they lie in the pages.
  struct Tiles {
    T *keys, *values;
    int64_t* places;
  };
  template <class Lane>
  TRIREME_DEVICE Tiles tiles(const Lane& lane, int64_t token) const {
    auto* memory = lane.template shared<unsigned char>() + token / kKeys % 2 * (2 * kTileBytes + kPlaceBytes);
    return {reinterpret_cast<T*>(memory), reinterpret_cast<T*>(memory + kTileBytes),
            reinterpret_cast<int64_t*>(memory + 2 * kTileBytes)};
  }

  template <class Lane>
  TRIREME_DEVICE void find_places(const Lane& lane, Place at, int64_t token, int64_t end) const {
    int64_t* places = tiles(lane, token).places;
    for (int i = lane.thread(); i < kKeys && token < end; i += kThreads)
      places[i] = token + i < end ? view.place(at.sequence, at.kv, token + i) : -1;
  }

  /// Asks for keys and values of the kKeys tokens from `token` on; zeros where there are none.
  template <class Lane>
  TRIREME_DEVICE void load_tiles(const Lane& lane, int64_t token, int64_t end) const {
    if (token >= end) return;
    const auto [keys, values, places] = tiles(lane, token);
    for (int i = lane.thread(); i < kKeys * kChunks; i += kThreads) {
      const int key = i / kChunks, channel = i % kChunks * kChunk, to = key * kRow + channel;
      const int64_t from = channel < view.dim ? places[key] : -1;
      if (from >= 0) {
        copy_ahead(keys + to, k_pages + from + channel);
        copy_ahead(values + to, v_pages + from + channel);
      } else {
        *reinterpret_cast<Words*>(keys + to) = Words{};
        *reinterpret_cast<Words*>(values + to) = Words{};
      }
    }
  }

  template <class Lane>
  TRIREME_DEVICE void score_tile(const Lane& lane, int64_t token, const uint32_t (&query)[kDim / 16][4],
                                 float (&score)[kKeys / 8][4]) const {
    const int row = lane.thread() % 8, matrix = lane.thread() % kWarp / 8;
    const T* keys = tiles(lane, token).keys + row * kRow + matrix * 8;
    for (int n = 0; n < kKeys / 8; ++n) {
      for (float& v : score[n]) v = 0;
      for (int step = 0; step < kDim / 16; step += 2) {  // a step is two matrices of 8 channels
        const Words k = load_matrices<false>(lane, keys + n * 8 * kRow + step * 16);
        multiply_add<T>(lane, score[n], query[step], {k.word[0], k.word[1]});
        multiply_add<T>(lane, score[n], query[step + 1], {k.word[2], k.word[3]});
      }
    }
  }

  template <class Lane>
  TRIREME_DEVICE void add_values(const Lane& lane, int64_t token, const float (&p)[kKeys / 8][4],
                                 State& state) const {
    const int row = lane.thread() % 16, matrix = lane.thread() % kWarp / 16;  // of 8 channels
    const T* values = tiles(lane, token).values + row * kRow + matrix * 8;
    for (int j = 0; j < kKeys / 16; ++j) {
      const uint32_t a[4] = {pack_two<T>(p[2 * j][0], p[2 * j][1]), pack_two<T>(p[2 * j][2], p[2 * j][3]),
                             pack_two<T>(p[2 * j + 1][0], p[2 * j + 1][1]),
                             pack_two<T>(p[2 * j + 1][2], p[2 * j + 1][3])};
      for (int d = 0; d < kDim / 8; d += 2) {
        const Words v = load_matrices<true>(lane, values + j * 16 * kRow + d * 8);
        multiply_add<T>(lane, state.y[d], a, {v.word[0], v.word[1]});
        multiply_add<T>(lane, state.y[d + 1], a, {v.word[2], v.word[3]});
      }
    }
  }
};

}  // namespace trireme::cuda
