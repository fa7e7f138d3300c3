// Decoding over pages, few new tokens a sequence: a block takes a part of a sequence's keys, bound by the
// bytes of keys and values.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/attention/paged_state.h"
#include "backend/cuda/device/step.h"

namespace trireme::cuda {

/// y of sequences of few new tokens. A block takes a part of a sequence for up to kVectors of the query
/// vectors (new tokens times heads of the group) of one key head; kLanes threads read a token, 16 bytes at a
/// time, kTurn tokens before they look at the first. A part's state goes to `partial`, as PagedStates has it
/// of [few rows, heads, parts], and the last block of a sequence, key head and chunk of vectors to come to an
/// end joins them, in the order of the parts. `tickets` [sequences, kv_heads, chunks] are zero before.
template <class Q, class T, int kDim, int kVectors>
struct PagedParts {
  static constexpr int kThreads = 128, kMostThreads = kThreads;
  static constexpr int kLanes = kDim / kPack<T> < kWarp ? kDim / kPack<T> : kWarp;  // of a token
  static constexpr int kEach = kDim / kLanes;                                       // channels of a thread
  static constexpr int kTeams = kThreads / kLanes;
  static constexpr int kTurn = kEach > 8 ? 2 : 4;
  static constexpr int64_t kStateFloats = kTeams * kVectors * (kDim + 2) + kTeams * kVectors;
  static constexpr int64_t kJoinFloats = kVectors * (kMostParts + 1);
  static constexpr int64_t kSharedBytes =
      (kStateFloats > kJoinFloats ? kStateFloats : kJoinFloats) * static_cast<int64_t>(sizeof(float)) + 16;
  PagedView view;
  const Q* q;
  const T *k_pages, *v_pages;
  float* partial;
  int32_t* tickets;
  Q* y;

  static TRIREME_HD int64_t chunks_of(const PagedView& view) {
    return (kFewRows * view.group() + kVectors - 1) / kVectors;
  }

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    // Places and parts fit 32 bits, which a GPU divides in a tenth of the time.
    const auto chunks = static_cast<uint32_t>(chunks_of(view)), heads = static_cast<uint32_t>(view.kv_heads);
    const uint32_t pairs = static_cast<uint32_t>(view.sequences) * heads;
    const uint32_t all = pairs * chunks * static_cast<uint32_t>(view.most_parts());
    // First parts come first, and first chunks of a part: what short sequences, or those of one new token, do
    // not have lies together, so that blocks share the rest evenly.
    for (auto i = static_cast<uint32_t>(lane.block()); i < all; i += static_cast<uint32_t>(lane.blocks())) {
      const uint32_t pair = i % pairs, chunk = i / pairs % chunks, part = i / pairs / chunks;
      run(lane, {pair / heads, pair % heads, chunk * int64_t{kVectors}, part, pair * chunks + chunk});
    }
  }

 private:
  using Place = PagedPlace;
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
    const int64_t length = view.length(at.sequence), part = part_tokens(length), begin = at.part * part;
    // The whole block: nobody reads this part.
    if (fresh == 0 || fresh > kFewRows || left <= 0 || begin >= length) return;
    const int team = lane.thread() / kLanes, in_team = lane.thread() % kLanes;
    Vectors v;
    v.count = static_cast<int>(left < kVectors ? left : kVectors);
    int64_t most = 0, least = length;
    TRIREME_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const auto vector = static_cast<uint32_t>(at.first + (i < v.count ? i : 0));
      const uint32_t row = vector / static_cast<uint32_t>(view.group());
      v.seen[i] = static_cast<int32_t>(view.seen(at.sequence, row));
      most = v.seen[i] > most ? v.seen[i] : most;
      least = v.seen[i] < least ? v.seen[i] : least;
      load_channels<kEach>(
          q + at.row_of(view, static_cast<int>(vector - static_cast<uint32_t>(at.first))) * view.dim,
          in_team * kEach, view.dim, v.query[i]);
    }
    const int64_t end = begin + part < most ? begin + part : most;
    const int64_t left_behind = view.first_of(least), start = begin > left_behind ? begin : left_behind;
    PagedState<kEach> state[kVectors];
    // All teams take as many turns: shuffles need whole warps.
    for (int64_t turn = start; turn < end; turn += kTeams * kTurn)
      visit(lane, at, {turn + team * kTurn, end}, v, state);
    join_teams(lane, at, v, state);
    const int64_t parts = parts_of(length);
    if (parts > 1 && is_last_part(lane, tickets + at.ticket, parts))
      join_parts<kVectors>(lane, PagedJoin<Q>{view, at, v.count, parts, {view, partial}, y});
  }

  /// kTurn tokens from `tokens.at` on: their scores, then all at once into the states.
  template <class Lane>
  TRIREME_DEVICE void visit(const Lane& lane, Place at, Tokens tokens, const Vectors& v,
                            PagedState<kEach> (&state)[kVectors]) const {
    float key[kTurn][kEach] = {}, value[kTurn][kEach] = {};
    bool is_there[kTurn];
    const int channel = lane.thread() % kLanes * kEach;
    TRIREME_UNROLL
    for (int t = 0; t < kTurn; ++t) {
      const int64_t token = tokens.at + t;
      const int64_t from = token < tokens.end ? view.place(at.sequence, at.kv, token) : -1;
      is_there[t] = from >= 0;
      if (from < 0) continue;
      load_row<kEach>(view, k_pages + from, channel, key[t]);
      load_row<kEach>(view, v_pages + from, channel, value[t]);
    }
    TRIREME_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      float score[kTurn], top = state[i].top;
      TRIREME_UNROLL
      for (int t = 0; t < kTurn; ++t) {
        float dot = 0;
        for (int c = 0; c < kEach; ++c) dot += v.query[i][c] * key[t][c];
        for (int mask = kLanes / 2; mask > 0; mask /= 2) dot += lane.shuffle_xor(dot, mask);
        const int64_t token = tokens.at + t;
        const bool is_seen = is_there[t] && token < v.seen[i] && token >= view.first_of(v.seen[i]);
        score[t] = is_seen ? view.capped(dot * view.scale) : -INFINITY;
        top = !(score[t] <= top) ? score[t] : top;  // NaN goes on
      }
      if (top == -INFINITY) continue;
      const float own = expf(state[i].top - top);
      state[i].top = top;
      state[i].sum *= own;
      for (int c = 0; c < kEach; ++c) state[i].y[c] *= own;
      TRIREME_UNROLL
      for (int t = 0; t < kTurn; ++t) {
        const float weight = score[t] == -INFINITY ? 0.0f : expf(score[t] - top);
        state[i].sum += weight;
        for (int c = 0; c < kEach; ++c) state[i].y[c] += weight * value[t][c];
      }
    }
  }

  /// The teams' states in their order, through shared memory: for each vector [teams, kDim + 2]. The state of
  /// the part, or y if there is one part only.
  template <class Lane>
  TRIREME_DEVICE void join_teams(const Lane& lane, Place at, const Vectors& v,
                                 const PagedState<kEach> (&state)[kVectors]) const {
    float* shared = lane.template shared<float>();
    const int team = lane.thread() / kLanes, in_team = lane.thread() % kLanes;
    constexpr int kRow = kDim + 2;
    lane.sync();  // the part before may still be read
    TRIREME_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      float* row = shared + (i * kTeams + team) * kRow;
      for (int c = 0; c < kEach; ++c) row[in_team * kEach + c] = state[i].y[c];
      if (in_team == 0) row[kDim] = state[i].top, row[kDim + 1] = state[i].sum;
    }
    lane.sync();
    float* shares = shared + kTeams * kVectors * kRow;
    for (int i = lane.thread(); i < v.count * kTeams; i += kThreads) {
      const float* tops = shared + i / kTeams * kTeams * kRow + kDim;
      shares[i] = share_of(tops[i % kTeams * kRow], largest_score(tops, kTeams, kRow));
    }
    lane.sync();
    const bool is_whole = parts_of(view.length(at.sequence)) == 1;
    for (int i = lane.thread(); i < v.count * kDim; i += kThreads) {
      const int vector = i / kDim, channel = i % kDim;
      if (channel >= view.dim) continue;
      const float* row = shared + vector * kTeams * kRow;
      float total = 0, value = 0;
      TRIREME_UNROLL
      for (int t = 0; t < kTeams; ++t) {
        const float share = shares[vector * kTeams + t];
        total += share * row[t * kRow + kDim + 1];
        value += share * row[t * kRow + channel];
      }
      if (is_whole) {
        y[at.row_of(view, vector) * view.dim + channel] = from_float<Q>(total != 0 ? value / total : 0.0f);
        continue;
      }
      const PagedStates states(view, partial);
      const int64_t number = at.state_of(view, vector, at.part);
      states.values[number * view.dim + channel] = value;
      if (channel == 0) {
        states.sums[2 * number] = largest_score(row + kDim, kTeams, kRow);
        states.sums[2 * number + 1] = total;
      }
    }
  }
};

}  // namespace trireme::cuda
