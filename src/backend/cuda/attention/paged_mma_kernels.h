// Prompts over pages on tensor cores: a block takes a tile of query vectors of a key head over all their
// keys.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/dense/mma.h"
#include "backend/cuda/attention/mma_state.h"
#include "backend/cuda/attention/paged_attention.h"
#include "backend/cuda/attention/paged_view.h"

namespace trireme::cuda {

/// Sequences of more than kFewRows new tokens, 16-bit queries and pages, heads of a multiple of 8 channels up
/// to kDim. A warp owns 16 query vectors (new tokens times heads of the group, so that the group shares the
/// keys); keys pass through shared memory kKeys at a time. Scores, softmax and sums in f32, probabilities
/// rounded to T for the product with values. Dao et al. 2022. 4 dim flop a vector and key.
template <class T, int kDim>
struct PagedMma {
  static constexpr int kThreads = 128, kMostThreads = kThreads, kVectors = kThreads / kWarp * 16;
  static constexpr int kKeys = 64, kChunk = 8, kChunks = kDim / kChunk;  // channels of 16 bytes
  // Rows of both tiles are shifted against each other so that a warp's reads fall into all banks.
  static constexpr int kKeyRow = kDim + 8, kValueRow = kDim + 8;  // in elements; in pairs of elements
  static constexpr int64_t kKeyBytes = kKeys * kKeyRow * 2, kValueBytes = kKeys / 2 * kValueRow * 4;
  static constexpr int64_t kSharedBytes = kKeyBytes + kValueBytes + kKeys * 8;
  PagedView view;
  const T *q, *k_pages, *v_pages;
  T* y;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
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
  struct alignas(16) Chunk {
    uint32_t word[4];
  };
  struct Place {
    int64_t sequence, kv, first, vectors;
  };
  using State = MmaState<kDim, kKeys>;

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
    for (int64_t token = 0; token < end; token += kKeys) {
      load_tiles(lane, at, token, end);
      float score[kKeys / 8][4];
      score_tile(lane, query, score);
      state.soften(lane, token, view.scale, score);
      add_values(lane, score, state);
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

  /// Shared memory: keys [kKeys, kKeyRow]; values [kKeys / 2, kValueRow], those of two keys in one word;
  /// where keys lie in the pages.
  struct Tiles {
    uint16_t* keys;
    uint32_t* values;
    int64_t* places;
  };
  template <class Lane>
  TRIREME_DEVICE Tiles tiles(const Lane& lane) const {
    auto* memory = lane.template shared<unsigned char>();
    return {reinterpret_cast<uint16_t*>(memory), reinterpret_cast<uint32_t*>(memory + kKeyBytes),
            reinterpret_cast<int64_t*>(memory + kKeyBytes + kValueBytes)};
  }

  template <class Lane>
  TRIREME_DEVICE void load_tiles(const Lane& lane, Place at, int64_t token, int64_t end) const {
    const auto [keys, values, places] = tiles(lane);
    lane.sync();  // the tile before may still be read
    for (int i = lane.thread(); i < kKeys; i += kThreads)
      places[i] = token + i < end ? view.place(at.sequence, at.kv, token + i) : -1;
    lane.sync();
    const auto chunk = [&, at_token = places](const T* pages, int key, int channel) {
      if (at_token[key] < 0 || channel >= view.dim) return Chunk{};
      return *reinterpret_cast<const Chunk*>(pages + at_token[key] + channel);
    };
    for (int i = lane.thread(); i < kKeys * kChunks; i += kThreads) {
      const int key = i / kChunks, channel = i % kChunks * kChunk;
      *reinterpret_cast<Chunk*>(keys + key * kKeyRow + channel) = chunk(k_pages, key, channel);
    }
    for (int i = lane.thread(); i < kKeys / 2 * kChunks; i += kThreads) {
      const int two = i / kChunks, channel = i % kChunks * kChunk;
      const Chunk low = chunk(v_pages, 2 * two, channel), high = chunk(v_pages, 2 * two + 1, channel);
      Chunk out[2];
      for (int w = 0; w < 4; ++w) {
        out[w / 2].word[w % 2 * 2] = (low.word[w] & 0xffffu) | high.word[w] << 16;
        out[w / 2].word[w % 2 * 2 + 1] = low.word[w] >> 16 | (high.word[w] & 0xffff0000u);
      }
      auto* to = reinterpret_cast<Chunk*>(values + two * kValueRow + channel);
      to[0] = out[0];
      to[1] = out[1];
    }
    lane.sync();
  }

  template <class Lane>
  TRIREME_DEVICE void score_tile(const Lane& lane, const uint32_t (&query)[kDim / 16][4],
                                 float (&score)[kKeys / 8][4]) const {
    const int group = lane.thread() % kWarp / 4, pair = lane.thread() % 4 * 2;
    for (int n = 0; n < kKeys / 8; ++n) {
      for (float& v : score[n]) v = 0;
      const uint16_t* row = tiles(lane).keys + (n * 8 + group) * kKeyRow + pair;
      for (int step = 0; step < kDim / 16; ++step) {
        const uint32_t b[2] = {*reinterpret_cast<const uint32_t*>(row + step * 16),
                               *reinterpret_cast<const uint32_t*>(row + step * 16 + 8)};
        multiply_add<T>(lane, score[n], query[step], b);
      }
    }
  }

  template <class Lane>
  TRIREME_DEVICE void add_values(const Lane& lane, const float (&p)[kKeys / 8][4], State& state) const {
    const int group = lane.thread() % kWarp / 4, in_four = lane.thread() % 4;
    for (int j = 0; j < kKeys / 16; ++j) {
      const uint32_t a[4] = {pack_two<T>(p[2 * j][0], p[2 * j][1]), pack_two<T>(p[2 * j][2], p[2 * j][3]),
                             pack_two<T>(p[2 * j + 1][0], p[2 * j + 1][1]),
                             pack_two<T>(p[2 * j + 1][2], p[2 * j + 1][3])};
      const uint32_t* row = tiles(lane).values + (j * 8 + in_four) * kValueRow + group;
      for (int d = 0; d < kDim / 8; ++d) {
        const uint32_t b[2] = {row[d * 8], row[4 * kValueRow + d * 8]};
        multiply_add<T>(lane, state.y[d], a, b);
      }
    }
  }
};

}  // namespace trireme::cuda
