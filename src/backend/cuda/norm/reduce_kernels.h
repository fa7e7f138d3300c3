// Reductions of rows whose terms are neighbours, in two stages where there are few results. Which terms a
// thread takes, and in which order partial results join, follows from the extents alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/device/divide.h"
#include "backend/cuda/norm/reduce.h"
#include "backend/cuda/norm/reduce_join.h"
#include "backend/cuda/device/step.h"

namespace trireme::cuda {

/// Reads that a thread has under way; terms join in their order all the same.
inline constexpr int kReduceReads = 4;

/// Where the terms of result r lie: at offset(kept, r) + offset(gone, t).
struct ReduceWalk {
  Divider extent[kReduceRank];
  int64_t step[kReduceRank];
  int rank = 0;

  TRIREME_DEVICE int64_t offset(int64_t i) const {
    int64_t at = 0;
    for (int d = rank - 1; d > 0; --d) at += extent[d].step(i) * step[d];
    return rank > 0 ? at + i * step[0] : 0;
  }
};

/// What becomes of a term before, and of a total after.
struct ReduceEnds {
  ReduceTerm term;
  ReduceFinish finish;
  int64_t terms;

  template <class A>
  TRIREME_DEVICE A before(A x) const {
    if (term == ReduceTerm::absolute) return x < A(0) ? A(0) - x : x;
    return term == ReduceTerm::square ? static_cast<A>(x * x) : x;
  }
  template <class A>
  TRIREME_DEVICE A after(A total) const {
    if (finish == ReduceFinish::mean) {
      if constexpr (std::is_integral_v<A>) return terms == 0 ? A(0) : static_cast<A>(total / terms);
      return static_cast<A>(total / static_cast<A>(terms));
    }
    if (finish == ReduceFinish::root) return static_cast<A>(std::sqrt(static_cast<Real<A>>(total)));
    if (finish == ReduceFinish::log) return static_cast<A>(std::log(static_cast<Real<A>>(total)));
    return total;
  }

 private:
  template <class A>
  using Real = std::conditional_t<std::is_same_v<A, float>, float, double>;
};

/// A result for each warp or, where there are more terms, each block; of `pieces` > 1 the totals of the
/// pieces go to parts [results, pieces]. Reads each term once: sizeof(T) bytes a term.
template <class T, class Join>
struct ReduceRows {
  using A = Total<T>;
  const T* x;
  T* y;
  A* parts;
  ReduceWalk kept, gone;
  ReduceEnds ends;
  int64_t results, pieces, piece;  // terms of a piece
  bool is_dense;                   // the terms are one run of whole, aligned packs
  bool by_warp;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int width = by_warp ? kWarp : lane.threads();
    const int64_t groups = lane.blocks() * (lane.threads() / width);
    const int at = lane.thread() % width;
    const auto combine = [](A a, A b) { return Join::join(a, b); };
    for (int64_t item = lane.block() * (lane.threads() / width) + lane.thread() / width;
         item < results * pieces; item += groups) {
      const int64_t result = item / pieces, first = item % pieces * piece;
      const int64_t last = first + piece < ends.terms ? first + piece : ends.terms;
      A total = sum_of(x + kept.offset(result), first, last, at, width);
      if (by_warp) {
        for (int mask = kWarp / 2; mask > 0; mask /= 2) total = combine(total, lane.shuffle_xor(total, mask));
      } else {
        total = block_reduce(lane, total, lane.template shared<A>(), combine);
      }
      if (at != 0) continue;
      if (pieces == 1)
        y[result] = static_cast<T>(ends.after(total));
      else
        parts[item] = total;
    }
  }

 private:
  TRIREME_DEVICE A sum_of(const T* from, int64_t first, int64_t last, int at, int width) const {
    A total = Join::start();
    if (!is_dense) {
      for (int64_t t = first + at; t < last; t += width)
        total = Join::join(total, ends.before(widened(from[gone.offset(t)])));
      return total;
    }
    const int64_t wide = int64_t{width} * kPack<T>;
    for (int64_t t = first + int64_t{at} * kPack<T>; t < last; t += kReduceReads * wide) {
      Pack<T> pack[kReduceReads] = {};
      TRIREME_UNROLL
      for (int r = 0; r < kReduceReads; ++r) {
        if (t + r * wide < last) pack[r] = *reinterpret_cast<const Pack<T>*>(from + t + r * wide);
      }
      TRIREME_UNROLL
      for (int r = 0; r < kReduceReads; ++r) {
        if (t + r * wide >= last) continue;
        for (int j = 0; j < kPack<T>; ++j) total = Join::join(total, ends.before(widened(pack[r].item[j])));
      }
    }
    return total;
  }
};

}  // namespace trireme::cuda
