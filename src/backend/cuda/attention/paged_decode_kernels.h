// Decoding over pages, few new tokens a sequence: a block takes a part of a sequence's keys, bound by the
// bytes of keys and values.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/attention/paged_attention.h"
#include "backend/cuda/attention/paged_view.h"

namespace trireme::cuda {

/// What a run of tokens says of one query vector: largest score, sum of exponentials, sum of weighted values.
template <int kEach>
struct PagedState {
  float top = -INFINITY, sum = 0;
  float y[kEach] = {};

  /// Takes in another state, whose scores come later.
  TRIREME_DEVICE void join(float other_top, float other_sum, const float* other_y) {
    if (other_top == -INFINITY) return;
    const float most = other_top > top ? other_top : top;
    const float own = expf(top - most), others = expf(other_top - most);
    sum = sum * own + other_sum * others;
    for (int i = 0; i < kEach; ++i) y[i] = y[i] * own + other_y[i] * others;
    top = most;
  }
};

/// Partial results [sequences, kFewRows, heads, parts]: y [dim], then top and sum. A block takes a part of a
/// sequence for up to kVectors of the query vectors (new tokens times heads of the group) of one key head;
/// kLanes threads read a token, 16 bytes at a time.
template <class Q, class T, int kDim, int kVectors>
struct PagedParts {
  static constexpr int kThreads = 128, kMostThreads = kThreads;
  static constexpr int kLanes = kDim / kPack<T> < kWarp ? kDim / kPack<T> : kWarp;  // of a token
  static constexpr int kEach = kDim / kLanes;                                       // channels of a thread
  static constexpr int kTeams = kThreads / kLanes;
  static constexpr int64_t kSharedBytes =
      kTeams * kVectors * (kDim + 2) * static_cast<int64_t>(sizeof(float));
  PagedView view;
  const Q* q;
  const T *k_pages, *v_pages;
  float* partial;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t chunks = (kFewRows * view.group() + kVectors - 1) / kVectors, parts = view.parts();
    const int64_t all = view.sequences * view.kv_heads * chunks * parts;
    for (int64_t i = lane.block(); i < all; i += lane.blocks()) {
      const int64_t part = i % parts, chunk = i / parts % chunks, kv = i / parts / chunks % view.kv_heads;
      run(lane, {i / parts / chunks / view.kv_heads, kv, chunk * kVectors, part});
    }
  }

 private:
  struct Place {
    int64_t sequence, kv, first, part;
  };
  struct Tokens {
    int64_t at, end;
  };
  /// A thread's share of the query vectors, and how many keys each sees.
  struct Vectors {
    float query[kVectors][kEach];
    int32_t seen[kVectors];  // tokens fit
    int count;
  };

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, Place at) const {
    const int64_t fresh = view.fresh(at.sequence), left = fresh * view.group() - at.first;
    const int64_t begin = at.part * kPagedPart;
    // The whole block: nobody reads this part.
    if (fresh == 0 || fresh > kFewRows || left <= 0 || begin >= view.length(at.sequence)) return;
    const int team = lane.thread() / kLanes, in_team = lane.thread() % kLanes;
    Vectors v;
    v.count = static_cast<int>(left < kVectors ? left : kVectors);
    int64_t most = 0, least = view.length(at.sequence);
    for (int i = 0; i < kVectors; ++i) {
      const int64_t vector = at.first + (i < v.count ? i : 0), row = vector / view.group();
      v.seen[i] = static_cast<int32_t>(view.seen(at.sequence, row));
      most = v.seen[i] > most ? v.seen[i] : most;
      least = v.seen[i] < least ? v.seen[i] : least;
      const int64_t head = at.kv * view.group() + vector % view.group();
      const Q* from = q + ((view.starts[at.sequence] + row) * view.heads + head) * view.dim;
      load_channels<kEach>(from, in_team * kEach, view.dim, v.query[i]);
    }
    const int64_t end = begin + kPagedPart < most ? begin + kPagedPart : most;
    const int64_t left_behind = view.first_of(least), start = begin > left_behind ? begin : left_behind;
    PagedState<kEach> state[kVectors];
    // All teams take as many turns: shuffles need whole warps.
    for (int64_t token = start + team; token - team < end; token += kTeams)
      visit(lane, at, {token, end}, v, state);
    join_teams(lane, at, v, state);
  }

  template <class Lane>
  TRIREME_DEVICE void visit(const Lane& lane, Place at, Tokens tokens, const Vectors& v,
                            PagedState<kEach> (&state)[kVectors]) const {
    const auto [token, end] = tokens;
    float key[kEach] = {}, value[kEach] = {};
    const int64_t from = token < end ? view.place(at.sequence, at.kv, token) : -1;
    if (from >= 0) {
      const int channel = lane.thread() % kLanes * kEach;
      load_channels<kEach>(k_pages + from, channel, view.dim, key);
      load_channels<kEach>(v_pages + from, channel, view.dim, value);
    }
    for (int i = 0; i < kVectors; ++i) {
      float dot = 0;
      for (int c = 0; c < kEach; ++c) dot += v.query[i][c] * key[c];
      for (int mask = kLanes / 2; mask > 0; mask /= 2) dot += lane.shuffle_xor(dot, mask);
      if (from >= 0 && token < v.seen[i] && token >= view.first_of(v.seen[i]))
        state[i].join(view.capped(dot * view.scale), 1.0f, value);
    }
  }

  /// The teams' states in their order, through shared memory: for each vector [teams, kDim + 2].
  template <class Lane>
  TRIREME_DEVICE void join_teams(const Lane& lane, Place at, const Vectors& v,
                                 const PagedState<kEach> (&state)[kVectors]) const {
    float* shared = lane.template shared<float>();
    const int team = lane.thread() / kLanes, in_team = lane.thread() % kLanes;
    constexpr int kRow = kDim + 2;
    lane.sync();  // the part before may still be read
    for (int i = 0; i < kVectors; ++i) {
      float* row = shared + (i * kTeams + team) * kRow;
      for (int c = 0; c < kEach; ++c) row[in_team * kEach + c] = state[i].y[c];
      if (in_team == 0) row[kDim] = state[i].top, row[kDim + 1] = state[i].sum;
    }
    lane.sync();
    for (int i = lane.thread(); i < v.count * kDim; i += kThreads) {
      const int vector = i / kDim, channel = i % kDim;
      if (channel >= view.dim) continue;
      PagedState<1> joined;
      for (int t = 0; t < kTeams; ++t) {
        const float* row = shared + (vector * kTeams + t) * kRow;
        joined.join(row[kDim], row[kDim + 1], row + channel);
      }
      const int64_t number = at.first + vector;
      const int64_t head = at.kv * view.group() + number % view.group();
      float* out = partial + view.state(at.sequence, number / view.group(), head, at.part);
      out[channel] = joined.y[0];
      if (channel == 0) out[view.dim] = joined.top, out[view.dim + 1] = joined.sum;
    }
  }
};

/// y of sequences of few new tokens from the parts in their order, and of rows of no sequence: zeros. A block
/// a row and head.
template <class Q>
struct JoinPaged {
  PagedView view;
  const float* partial;
  Q* y;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t i = lane.block(); i < view.rows * view.heads; i += lane.blocks()) {
      const int64_t row = i / view.heads, head = i % view.heads, s = view.sequence_of(row);
      const bool is_there = s < view.sequences;
      if (is_there && view.fresh(s) > kFewRows) continue;
      const int64_t own = is_there ? row - view.starts[s] : 0;
      const int64_t used = is_there ? (view.seen(s, own) + kPagedPart - 1) / kPagedPart : 0;
      for (int64_t c = lane.thread(); c < view.dim; c += lane.threads()) {
        PagedState<1> joined;
        for (int64_t part = 0; part < used; ++part) {
          const float* from = partial + view.state(s, own, head, part);
          joined.join(from[view.dim], from[view.dim + 1], from + c);
        }
        y[i * view.dim + c] = from_float<Q>(joined.sum > 0 ? joined.y[0] / joined.sum : 0.0f);
      }
    }
  }
};

}  // namespace trireme::cuda
