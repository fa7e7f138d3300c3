// What decoding over pages keeps of parts of a sequence, and how the last block joins them.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/attention/paged_view.h"
#include "backend/cuda/device/step.h"

namespace trireme::cuda {

/// What a run of tokens says of one query vector: largest score, sum of exponentials, sum of weighted values.
template <int kEach>
struct PagedState {
  float top = -INFINITY, sum = 0;
  float y[kEach] = {};
};

/// What a block takes: query vectors from `first` on of one key head, over one part of a sequence.
struct PagedPlace {
  int64_t sequence, kv, first, part, ticket;

  /// Row and head of a vector, counted from the first, as a row of q and y.
  TRIREME_DEVICE int64_t row_of(const PagedView& view, int vector) const {
    // Vectors of a sequence fit 32 bits, see PagedView::place().
    const auto number = static_cast<uint32_t>(first + vector), group = static_cast<uint32_t>(view.group());
    return (view.starts[sequence] + int64_t{number / group}) * view.heads + kv * view.group() +
           number % group;
  }
  TRIREME_DEVICE int64_t state_of(const PagedView& view, int vector, int64_t of_part) const {
    const auto number = static_cast<uint32_t>(first + vector), group = static_cast<uint32_t>(view.group());
    return view.state(sequence, number / group, kv * view.group() + number % group, of_part);
  }
};

/// Whether all other parts of a place are there. All threads of the block call it.
template <class Lane>
TRIREME_DEVICE bool is_last_part(const Lane& lane, int32_t* ticket, int64_t parts) {
  auto* shared = lane.template shared<int32_t>();
  lane.sync();  // this block's state is written, and what it was made of read
  if (lane.thread() == 0) shared[0] = lane.arrive(ticket);
  lane.sync();
  const int32_t before = shared[0];
  lane.sync();  // the word may be written again
  return before == parts - 1;
}

/// States of all rows, heads and parts in the workspace: their values [states, dim], then of each the largest
/// score and the sum.
struct PagedStates {
  float *values, *sums;

  TRIREME_DEVICE PagedStates(const PagedView& view, float* workspace)
      : values(workspace), sums(workspace + view.states() * view.dim) {}
};

template <class Q>
struct PagedJoin {
  const PagedView& view;
  const PagedPlace& at;
  int count;      // of vectors
  int64_t parts;  // of the sequence
  PagedStates states;
  Q* y;
};

/// The largest of `count` scores; one that is NaN comes back through its share.
TRIREME_DEVICE float largest_score(const float* top, int count, int step) {
  float most = -INFINITY;
  for (int i = 0; i < count; ++i) most = !(top[i * step] <= most) ? top[i * step] : most;
  return most;
}
/// What a state with the largest score `top` counts beside one with `most`.
TRIREME_DEVICE float share_of(float top, float most) { return top == -INFINITY ? 0.0f : expf(top - most); }

/// Adds up kEach channels of the parts' values, each by its share, in the order of the parts: y of a vector.
template <int kEach, class Q>
TRIREME_DEVICE void join_channels(const PagedJoin<Q>& j, int vector, int channel, const float* shares,
                                  float total) {
  const int64_t dim = j.view.dim;
  const float* from = j.states.values + j.at.state_of(j.view, vector, 0) * dim + channel;
  float value[kEach] = {};
  constexpr int kTurn = 8;  // reads under way
  const int parts = static_cast<int>(j.parts);
  for (int p = 0; p < parts; p += kTurn) {
    float state[kTurn][kEach] = {};
    TRIREME_UNROLL
    for (int t = 0; t < kTurn; ++t) {
      if (p + t < parts) load_step<kEach>(from + (p + t) * dim, state[t]);
    }
    TRIREME_UNROLL
    for (int t = 0; t < kTurn; ++t) {
      const float share = p + t < parts ? shares[p + t] : 0.0f;  // a part that saw nothing has zeros
      for (int c = 0; c < kEach; ++c) value[c] += share * state[t][c];
    }
  }
  for (int c = 0; c < kEach; ++c) value[c] = total != 0 ? value[c] / total : 0.0f;
  store_step<kEach>(value, j.y + j.at.row_of(j.view, vector) * dim + channel);
}

/// y from the states of all parts: a warp weighs those of a vector by the largest score first. Shared memory:
/// kVectors (kMostParts + 1) floats.
template <int kVectors, class Lane, class Q>
TRIREME_DEVICE void join_parts(const Lane& lane, const PagedJoin<Q>& j) {
  constexpr int kEach = 4, kTurns = static_cast<int>(kMostParts) / kWarp;
  float *shares = lane.template shared<float>(), *totals = shares + kVectors * kMostParts;
  const int parts = static_cast<int>(j.parts), dim = static_cast<int>(j.view.dim);
  const int in_warp = lane.thread() % kWarp;
  for (int vector = lane.thread() / kWarp; vector < j.count; vector += lane.threads() / kWarp) {
    const float* from = j.states.sums + 2 * j.at.state_of(j.view, vector, 0);
    float top[kTurns], sum[kTurns], most = -INFINITY, total = 0;
    TRIREME_UNROLL
    for (int t = 0; t < kTurns; ++t) {
      const int part = t * kWarp + in_warp;
      top[t] = part < parts ? from[2 * part] : -INFINITY;
      sum[t] = part < parts ? from[2 * part + 1] : 0.0f;
      most = top[t] > most ? top[t] : most;
    }
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const float other = lane.shuffle_xor(most, mask);
      most = other > most ? other : most;
    }
    TRIREME_UNROLL
    for (int t = 0; t < kTurns; ++t) {
      const float share = share_of(top[t], most);
      shares[vector * kMostParts + t * kWarp + in_warp] = share;
      total += share * sum[t];
    }
    for (int mask = kWarp / 2; mask > 0; mask /= 2) total += lane.shuffle_xor(total, mask);
    if (in_warp == 0) totals[vector] = total;
  }
  lane.sync();
  const int each = dim % kEach == 0 ? kEach : 1, steps = dim / each;
  for (int i = lane.thread(); i < j.count * steps; i += lane.threads()) {
    const int vector = i / steps, channel = i % steps * each;
    const float* own = shares + vector * kMostParts;
    each == kEach ? join_channels<kEach>(j, vector, channel, own, totals[vector])
                  : join_channels<1>(j, vector, channel, own, totals[vector]);
  }
  lane.sync();  // the shared memory may be written again
}

/// What decoding asks for before: tickets of zero, and zeros for rows that no kernel writes, those of no
/// sequence and those of sequences without tokens. A block a row and head, at least.
template <class Q>
struct PreparePaged {
  PagedView view;
  int32_t* tickets;
  int64_t count;  // of tickets
  Q* y;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t step = lane.blocks() * lane.threads(),
                  first = lane.block() * lane.threads() + lane.thread();
    for (int64_t i = first; i < count; i += step) tickets[i] = 0;
    for (int64_t row = lane.block(); row < view.rows; row += lane.blocks()) {
      const int64_t s = view.sequence_of(row);
      if (s < view.sequences && view.length(s) > 0) continue;
      for (int64_t c = lane.thread(); c < view.heads * view.dim; c += lane.threads())
        y[row * view.heads * view.dim + c] = from_float<Q>(0.0f);
    }
  }
};

}  // namespace trireme::cuda
