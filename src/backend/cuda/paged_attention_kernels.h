// Decoding's attention: one query a sequence over keys and values in pages. Bound by the bytes of keys and
// values, which are read once for all query heads of their group.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/scalar.h"

namespace trireme::cuda {

/// Tokens of a sequence that one block reads; parts of sequences have this length always.
inline constexpr int64_t kPagedPart = 256;

/// What a run of tokens says of one head: largest score, sum of exponentials, sum of weighted values.
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

/// Partial results [sequences, kv_heads, heads of the group, parts]: y [dim], then top and sum. A block takes
/// a part of a sequence for up to kHeads query heads of one key head; kDim / kPack threads read a token, 16
/// bytes of its key and of its value each.
template <class T, int kDim, int kHeads>
struct PagedParts {
  static constexpr int kThreads = 128, kMostThreads = kThreads;
  static constexpr int kEach = kPack<T>, kLanes = kDim / kEach;  // of a token
  static constexpr int kTeams = kThreads / kLanes;
  static constexpr int64_t kSharedBytes = kTeams * kHeads * (kDim + 2) * static_cast<int64_t>(sizeof(float));
  const T *q, *k_pages, *v_pages;
  const int32_t *table, *lengths;
  float* partial;
  int64_t sequences, heads, kv_heads, page_tokens, most_pages, parts;
  float scale;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t group = heads / kv_heads, chunks = (group + kHeads - 1) / kHeads;
    const int64_t all = sequences * kv_heads * chunks * parts;
    for (int64_t i = lane.block(); i < all; i += lane.blocks()) {
      const int64_t part = i % parts, chunk = i / parts % chunks, kv = i / parts / chunks % kv_heads;
      run(lane, {i / parts / chunks / kv_heads, kv, chunk * kHeads, part});
    }
  }

 private:
  struct Tokens {
    int64_t at, end;
  };
  struct Place {
    int64_t sequence, kv, first_head, part;
  };

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, Place at) const {
    const int64_t length = lengths[at.sequence], begin = at.part * kPagedPart;
    if (begin >= length) return;  // the whole block: nobody reads this part
    const int64_t end = begin + kPagedPart < length ? begin + kPagedPart : length;
    const int team = lane.thread() / kLanes, in_team = lane.thread() % kLanes;
    const int64_t group = heads / kv_heads, left = group - at.first_head;
    const int own_heads = static_cast<int>(left < kHeads ? left : kHeads);
    float query[kHeads][kEach];
    for (int h = 0; h < kHeads; ++h) {
      const int64_t head = at.kv * group + at.first_head + (h < own_heads ? h : 0);
      load_pack(q + (at.sequence * heads + head) * kDim + in_team * kEach, kEach, query[h]);
    }
    PagedState<kEach> state[kHeads];
    // All teams take as many turns: shuffles need whole warps.
    for (int64_t token = begin + team; token - team < end; token += kTeams)
      visit(lane, at, {token, end}, query, state);
    join_teams(lane, at, own_heads, state);
  }

  template <class Lane>
  TRIREME_DEVICE void visit(const Lane& lane, Place at, Tokens tokens, const float (&query)[kHeads][kEach],
                            PagedState<kEach> (&state)[kHeads]) const {
    const auto [token, end] = tokens;
    const int in_team = lane.thread() % kLanes;
    const bool is_there = token < end;
    float key[kEach] = {}, value[kEach] = {};
    if (is_there) {
      const int64_t page = table[at.sequence * most_pages + token / page_tokens];
      const int64_t from =
          ((page * kv_heads + at.kv) * page_tokens + token % page_tokens) * kDim + in_team * kEach;
      load_pack(k_pages + from, kEach, key);
      load_pack(v_pages + from, kEach, value);
    }
    for (int h = 0; h < kHeads; ++h) {
      float dot = 0;
      for (int i = 0; i < kEach; ++i) dot += query[h][i] * key[i];
      for (int mask = kLanes / 2; mask > 0; mask /= 2) dot += lane.shuffle_xor(dot, mask);
      if (is_there) state[h].join(dot * scale, 1.0f, value);
    }
  }

  /// The teams' states in their order, through shared memory: for each head [teams, dim + 2].
  template <class Lane>
  TRIREME_DEVICE void join_teams(const Lane& lane, Place at, int own_heads,
                                 const PagedState<kEach> (&state)[kHeads]) const {
    float* shared = lane.template shared<float>();
    const int team = lane.thread() / kLanes, in_team = lane.thread() % kLanes;
    constexpr int kRow = kDim + 2;
    lane.sync();  // the part before may still be read
    for (int h = 0; h < kHeads; ++h) {
      float* row = shared + (h * kTeams + team) * kRow;
      for (int i = 0; i < kEach; ++i) row[in_team * kEach + i] = state[h].y[i];
      if (in_team == 0) row[kDim] = state[h].top, row[kDim + 1] = state[h].sum;
    }
    lane.sync();
    for (int i = lane.thread(); i < own_heads * kDim; i += kThreads) {
      const int h = i / kDim, channel = i % kDim;
      PagedState<1> joined;
      for (int t = 0; t < kTeams; ++t) {
        const float* row = shared + (h * kTeams + t) * kRow;
        joined.join(row[kDim], row[kDim + 1], row + channel);
      }
      const int64_t head = at.kv * (heads / kv_heads) + at.first_head + h;
      float* out = partial + ((at.sequence * heads + head) * parts + at.part) * kRow;
      out[channel] = joined.y[0];
      if (channel == 0) out[kDim] = joined.top, out[kDim + 1] = joined.sum;
    }
  }
};

/// y from the parts in their order; a block a sequence and head.
template <class T, int kDim>
struct JoinPaged {
  const float* partial;
  const int32_t* lengths;
  T* y;
  int64_t sequences, heads, parts;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t i = lane.block(); i < sequences * heads; i += lane.blocks()) {
      const int64_t used = (lengths[i / heads] + kPagedPart - 1) / kPagedPart;
      for (int c = lane.thread(); c < kDim; c += lane.threads()) {
        PagedState<1> joined;
        for (int64_t part = 0; part < used && part < parts; ++part) {
          const float* row = partial + (i * parts + part) * (kDim + 2);
          joined.join(row[kDim], row[kDim + 1], row + c);
        }
        y[i * kDim + c] = from_float<T>(joined.sum > 0 ? joined.y[0] / joined.sum : 0.0f);
      }
    }
  }
};

}  // namespace trireme::cuda
