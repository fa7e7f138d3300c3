// Reductions whose results are neighbours, and the second stage of those that are made in pieces.
#pragma once

#include <cstdint>

#include "backend/cuda/norm/reduce_kernels.h"

namespace trireme::cuda {

/// Neighbouring results side by side: a warp's lanes take kWide columns each, the warps of a block every
/// kGroups-th term; parts [pieces, results]. sizeof(T) bytes a term.
template <class T, class Join, int kWide>
struct ReduceColumns {
  using A = Total<T>;
  static constexpr int kGroups = 8, kThreads = kGroups * kWarp;
  static constexpr int64_t kSharedBytes = int64_t{kThreads} * kWide * static_cast<int64_t>(sizeof(A));
  struct alignas(kWide * sizeof(T)) Some {
    T item[kWide];
  };
  const T* x;
  T* y;
  A* parts;
  ReduceWalk kept, gone;  // kept without the columns
  ReduceEnds ends;
  int64_t results, columns, pieces, piece;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    A* shared = lane.template shared<A>();
    const int group = lane.thread() / kWarp, at = lane.thread() % kWarp;
    const int64_t across = (columns + kWarp * kWide - 1) / (kWarp * kWide);
    const int64_t outer = results / columns;
    for (int64_t item = lane.block(); item < outer * across * pieces; item += lane.blocks()) {
      const int64_t p = item % pieces, column = item / pieces % across * kWarp * kWide + at * kWide;
      const int64_t row = item / pieces / across;
      A total[kWide];
      for (A& t : total) t = Join::start();
      if (column < columns) sum(x + kept.offset(row) + column, p * piece + group, total);
      for (int j = 0; j < kWide; ++j) shared[(group * kWarp + at) * kWide + j] = total[j];
      lane.sync();
      for (int c = lane.thread(); c < kWarp * kWide; c += kThreads) {
        const int64_t to = item / pieces % across * kWarp * kWide + c;
        if (to >= columns) continue;
        A all = shared[c];
        for (int g = 1; g < kGroups; ++g) all = Join::join(all, shared[g * kWarp * kWide + c]);
        if (pieces == 1)
          y[row * columns + to] = static_cast<T>(ends.after(all));
        else
          parts[p * results + row * columns + to] = all;
      }
      lane.sync();
    }
  }

 private:
  TRIREME_DEVICE void sum(const T* from, int64_t first, A (&total)[kWide]) const {
    const int64_t end = (first / piece + 1) * piece, last = end < ends.terms ? end : ends.terms;
    for (int64_t t = first; t < last; t += kReduceReads * kGroups) {
      Some some[kReduceReads] = {};
      TRIREME_UNROLL
      for (int r = 0; r < kReduceReads; ++r) {
        if (t + r * kGroups < last)
          some[r] = *reinterpret_cast<const Some*>(from + gone.offset(t + r * kGroups));
      }
      TRIREME_UNROLL
      for (int r = 0; r < kReduceReads; ++r) {
        if (t + r * kGroups >= last) continue;
        for (int j = 0; j < kWide; ++j)
          total[j] = Join::join(total[j], ends.before(widened(some[r].item[j])));
      }
    }
  }
};

/// The second stage: totals of pieces join in their order, by one warp a result (parts [results, pieces]) or
/// one thread (parts [pieces, results]).
template <class T, class Join>
struct JoinPieces {
  using A = Total<T>;
  const A* parts;
  T* y;
  ReduceEnds ends;
  int64_t results, pieces;
  bool by_warp;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int width = by_warp ? kWarp : 1;
    const int64_t groups = lane.blocks() * (lane.threads() / width);
    for (int64_t r = lane.block() * (lane.threads() / width) + lane.thread() / width; r < results;
         r += groups) {
      A total = Join::start();
      if (!by_warp) {
        for (int64_t p = 0; p < pieces; ++p) total = Join::join(total, parts[p * results + r]);
      } else {
        for (int64_t p = lane.thread() % kWarp; p < pieces; p += kWarp)
          total = Join::join(total, parts[r * pieces + p]);
        for (int mask = kWarp / 2; mask > 0; mask /= 2)
          total = Join::join(total, lane.shuffle_xor(total, mask));
      }
      if (lane.thread() % width == 0) y[r] = static_cast<T>(ends.after(total));
    }
  }
};

}  // namespace trireme::cuda
