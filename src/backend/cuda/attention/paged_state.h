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

template <class Q>
struct PagedJoin {
  const PagedView& view;
  const PagedPlace& at;
  int count;      // of vectors
  int64_t parts;  // of the sequence
  const float* partial;
  Q* y;
};

/// The largest of `count` scores; NaN if one is.
TRIREME_DEVICE float largest_score(const float* top, int count, int step) {
  float most = -INFINITY;
  for (int i = 0; i < count; ++i) most = !(top[i * step] <= most) ? top[i * step] : most;
  return most;
}
/// What a state with the largest score `top` counts beside one with `most`.
TRIREME_DEVICE float share_of(float top, float most) { return top == -INFINITY ? 0.0f : expf(top - most); }

/// y from the states of all parts: weights by the largest score first, then sums in the order of the parts.
/// Shared memory: 3 kVectors kMostParts floats.
template <int kVectors, class Lane, class Q>
TRIREME_DEVICE void join_parts(const Lane& lane, const PagedJoin<Q>& j) {
  const PagedView& view = j.view;
  float* tops = lane.template shared<float>();
  float *sums = tops + kVectors * kMostParts, *shares = sums + kVectors * kMostParts;
  const int parts = static_cast<int>(j.parts), dim = static_cast<int>(view.dim);
  for (int i = lane.thread(); i < j.count * parts; i += lane.threads()) {
    const float* from = j.partial + j.at.state_of(view, i / parts, i % parts) + dim;
    tops[i] = from[0];
    sums[i] = from[1];
  }
  lane.sync();
  for (int i = lane.thread(); i < j.count * parts; i += lane.threads())
    shares[i] = share_of(tops[i], largest_score(tops + i / parts * parts, parts, 1));
  lane.sync();
  for (int i = lane.thread(); i < j.count * dim; i += lane.threads()) {
    const int vector = i / dim, channel = i % dim;
    const float *share = shares + vector * parts, *sum = sums + vector * parts;
    const float* from = j.partial + j.at.state_of(view, vector, 0) + channel;
    float total = 0, value = 0;
    constexpr int kTurn = 8;  // reads under way
    for (int p = 0; p < parts; p += kTurn) {
      float state[kTurn];
      TRIREME_UNROLL
      for (int t = 0; t < kTurn; ++t) state[t] = p + t < parts ? from[(p + t) * (dim + 2)] : 0.0f;
      TRIREME_UNROLL
      for (int t = 0; t < kTurn; ++t) {
        // A part that saw nothing has zeros.
        if (p + t >= parts) continue;
        total += share[p + t] * sum[p + t];
        value += share[p + t] * state[t];
      }
    }
    j.y[j.at.row_of(view, vector) * dim + channel] = from_float<Q>(total != 0 ? value / total : 0.0f);
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
