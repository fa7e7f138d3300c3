// Attention over pages. Decoding (few new tokens a sequence): a block takes a part of a sequence's keys,
// bound by the bytes of keys and values. Prompts: a block takes a tile of new tokens of a head over all their
// keys.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/paged_attention.h"
#include "backend/cuda/paged_view.h"

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
    int64_t most = 0;
    for (int i = 0; i < kVectors; ++i) {
      const int64_t vector = at.first + (i < v.count ? i : 0), row = vector / view.group();
      v.seen[i] = static_cast<int32_t>(view.seen(at.sequence, row));
      most = v.seen[i] > most ? v.seen[i] : most;
      const int64_t head = at.kv * view.group() + vector % view.group();
      const Q* from = q + ((view.starts[at.sequence] + row) * view.heads + head) * view.dim;
      load_channels<kEach>(from, in_team * kEach, view.dim, v.query[i]);
    }
    const int64_t end = begin + kPagedPart < most ? begin + kPagedPart : most;
    PagedState<kEach> state[kVectors];
    // All teams take as many turns: shuffles need whole warps.
    for (int64_t token = begin + team; token - team < end; token += kTeams)
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
      if (from >= 0 && token < v.seen[i]) state[i].join(dot * view.scale, 1.0f, value);
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

/// Sequences of more than kFewRows new tokens: a block takes kRows of them for one head and walks over its
/// keys in tiles of shared memory; kParts threads share a row and hold its channels in turn. Dao et al. 2022.
template <class Q, class T, int kDim>
struct PagedTiles {
  static constexpr int kRows = 32, kParts = kDim > 128 ? 8 : 4, kEach = kDim / kParts;
  static constexpr int kThreads = kRows * kParts, kMostThreads = kThreads;
  static constexpr int kRun = 8;  // keys between two corrections
  static constexpr int64_t kSharedBytes = 2 * kRows * kDim * static_cast<int64_t>(sizeof(float));
  PagedView view;
  const Q* q;
  const T *k_pages, *v_pages;
  Q* y;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    int64_t before = 0;  // blocks' tasks of the sequences before this one
    for (int64_t s = 0; s < view.sequences; ++s) {
      const int64_t fresh = view.fresh(s), tiles = fresh > kFewRows ? (fresh + kRows - 1) / kRows : 0;
      // The first of this block's tasks: number i with i % blocks == block.
      int64_t i = (lane.block() - before % lane.blocks() + lane.blocks()) % lane.blocks();
      for (; i < tiles * view.heads; i += lane.blocks()) run(lane, s, i % view.heads, i / view.heads * kRows);
      before += tiles * view.heads;
    }
  }

 private:
  struct State {
    float top = -INFINITY, sum = 0;
    float y[kEach] = {};
  };

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, int64_t s, int64_t head, int64_t first) const {
    float* keys = lane.template shared<float>();
    float* values = keys + kRows * kDim;
    const int part = lane.thread() % kParts;
    const int64_t fresh = view.fresh(s), row = first + lane.thread() / kParts;
    const int64_t at = ((view.starts[s] + row) * view.heads + head) * view.dim;
    const int64_t seen = row < fresh ? view.seen(s, row) : 0;
    float query[kEach];
    for (int i = 0; i < kEach; ++i) {
      const int channel = i * kParts + part;
      query[i] = row < fresh && channel < view.dim ? to_float(q[at + channel]) * view.scale : 0.0f;
    }
    State state;
    const int64_t last = first + kRows < fresh ? first + kRows : fresh, end = view.seen(s, last - 1);
    for (int64_t token = 0; token < end; token += kRows) {
      lane.sync();
      for (int i = lane.thread(); i < kRows * (kDim / kPack<T>); i += kThreads) {
        const int j = i / (kDim / kPack<T>), channel = i % (kDim / kPack<T>)*kPack<T>;
        const int64_t from = token + j < end ? view.place(s, head / view.group(), token + j) : -1;
        float none[kPack<T>] = {}, *k_to = keys + j * kDim + channel, *v_to = values + j * kDim + channel;
        if (from < 0) {
          for (int c = 0; c < kPack<T>; ++c) k_to[c] = v_to[c] = none[c];
        } else {
          load_channels<kPack<T>>(k_pages + from, channel, view.dim, k_to);
          load_channels<kPack<T>>(v_pages + from, channel, view.dim, v_to);
        }
      }
      lane.sync();
      for (int j = 0; j < kRows; j += kRun) visit(lane, seen - token, j, query, state);
    }
    if (row >= fresh) return;
    const float scale = state.sum > 0 ? 1.0f / state.sum : 0.0f;
    for (int i = 0; i < kEach; ++i) {
      const int channel = i * kParts + part;
      if (channel < view.dim) y[at + channel] = from_float<Q>(state.y[i] * scale);
    }
  }

  /// kRun keys from row `j` of the tiles on, of which the query vector sees those before row `seen`.
  template <class Lane>
  TRIREME_DEVICE void visit(const Lane& lane, int64_t seen, int j, const float* query, State& state) const {
    const float* keys = lane.template shared<float>();
    const float* values = keys + kRows * kDim;
    const int part = lane.thread() % kParts;
    float score[kRun], top = state.top;
    for (int r = 0; r < kRun; ++r) {
      float sum = 0;
      for (int i = 0; i < kEach; ++i) sum += query[i] * keys[(j + r) * kDim + i * kParts + part];
      for (int mask = kParts / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
      score[r] = j + r < seen ? sum : -INFINITY;
      top = score[r] > top ? score[r] : top;
    }
    if (top == -INFINITY) return;
    const float before = expf(state.top - top);
    state.sum *= before;
    for (float& value : state.y) value *= before;
    for (int r = 0; r < kRun; ++r) {
      const float p = expf(score[r] - top);
      state.sum += p;
      for (int i = 0; i < kEach; ++i) state.y[i] += p * values[(j + r) * kDim + i * kParts + part];
    }
    state.top = top;
  }
};

/// A thread an element of the new keys and values.
template <class From, class T>
struct AppendPages {
  KvAppendArgs a;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t row = a.kv_heads * a.dim;
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < a.tokens * row;
         i += lane.blocks() * lane.threads()) {
      const int64_t slot = a.slots[i / row], head = i / a.dim % a.kv_heads;
      if (slot < 0) continue;
      if (slot >= a.pages * a.page_tokens) {
        report_fault(a.fault, a.step, slot);
        continue;
      }
      const int64_t page = slot / a.page_tokens, at = slot % a.page_tokens;
      const int64_t to = ((page * a.kv_heads + head) * a.page_tokens + at) * a.dim + i % a.dim;
      static_cast<T*>(a.k_pages)[to] = from_float<T>(to_float(static_cast<const From*>(a.keys)[i]));
      static_cast<T*>(a.v_pages)[to] = from_float<T>(to_float(static_cast<const From*>(a.values)[i]));
    }
  }
};

}  // namespace trireme::cuda
