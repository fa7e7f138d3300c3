// What losses sum of a row of scores: one pass, however wide the row.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/reduce/held_rows.h"
#include "backend/cuda/reduce/rows.h"

namespace trireme::cuda {

/// What one pass over scores finds: the largest, the sum of exponentials relative to it, the first class that
/// has it, the sum.
struct ScoreSums {
  float top = -INFINITY, exps = 0, total = 0;
  int64_t first = 0;  // of the largest; the count of scores where there is none
};

struct SmallerIndex {
  TRIREME_DEVICE int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};

/// `n` scores. `is_whole`: they begin at 16 bytes, and what lies behind them up to a whole step of kHeldStep
/// may be read; follows from extents alone.
template <class T>
struct ScoreRow {
  const T* x;
  int64_t n;
  bool is_whole;
};

/// Maximum and sums of a thread's scores, rescaled as they go.
struct RunningScores {
  float most = -INFINITY, exps = 0, total = 0;
  int64_t where;  // of the largest

  /// The scores from `first` on, of which those before `end` count; with kAll all do, and none is asked.
  template <int kCount, bool kAll>
  TRIREME_DEVICE void take(const float* v, int64_t first, int64_t end) {
    float top = most;
    TRIREME_UNROLL
    for (int j = 0; j < kCount; ++j) top = (kAll || first + j < end) && v[j] > top ? v[j] : top;
    if (top > most) {  // seldom, but for the first
      exps *= expf(most - top);
      most = top;
      where = end;
      TRIREME_UNROLL
      for (int j = kCount - 1; j >= 0; --j)
        where = (kAll || first + j < end) && v[j] == top ? first + j : where;
    }
    const float base = most == -INFINITY ? 0.0f : most;
    TRIREME_UNROLL
    for (int j = 0; j < kCount; ++j) {
      if (!kAll && first + j >= end) continue;
      total += v[j];
      exps += expf(v[j] - base);  // NaN too
    }
  }
};

/// Steps that a thread has under way. 16-bit scores are summed in the order of f32.
inline constexpr int kScoreSteps = 2;

/// `scratch` as block_reduce wants it.
template <class T, class Lane>
TRIREME_DEVICE ScoreSums score_sums(const Lane& lane, const ScoreRow<T>& row) {
  float* scratch = lane.template shared<float>();
  RunningScores own{.where = row.n};
  const int64_t wide = int64_t{lane.threads()} * kHeldStep;
  for (int64_t at = int64_t{lane.thread()} * kHeldStep; row.is_whole && at < row.n;
       at += kScoreSteps * wide) {
    float v[kScoreSteps][kHeldStep] = {};
    TRIREME_UNROLL
    for (int s = 0; s < kScoreSteps; ++s) {
      if (at + s * wide < row.n) load_held_step(row.x + at + s * wide, v[s]);
    }
    TRIREME_UNROLL
    for (int s = 0; s < kScoreSteps; ++s) {
      const int64_t first = at + s * wide;
      if (first + kHeldStep <= row.n) {
        own.take<kHeldStep, true>(v[s], first, row.n);
      } else {
        own.take<kHeldStep, false>(v[s], first, row.n);
      }
    }
  }
  for (int64_t i = lane.thread(); !row.is_whole && i < row.n; i += lane.threads()) {
    const float v = to_float(row.x[i]);
    own.take<1, true>(&v, i, row.n);
  }
  ScoreSums s;
  s.top = block_reduce(lane, own.most, scratch, Larger{});
  const float scale = own.most == -INFINITY ? 1.0f : expf(own.most - s.top);
  s.exps = block_reduce(lane, own.exps * scale, scratch, Plus{});
  s.total = block_reduce(lane, own.total, scratch, Plus{});
  s.first = block_reduce(lane, own.most == s.top ? own.where : row.n, lane.template shared<int64_t>(),
                         SmallerIndex{});
  return s;
}

}  // namespace trireme::cuda
