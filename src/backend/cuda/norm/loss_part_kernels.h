// Cross entropy in steps, where classes are split over ranks.
#pragma once

#include "backend/cuda/norm/loss_kernels.h"

namespace trireme::cuda {

/// cross_entropy_part: of each part of the classes the largest score, and [sums, rows, parts]: exponentials,
/// the target's score or NaN, whether an earlier class has the largest, with `with_mean` the scores. A block
/// a row and part.
template <class T>
struct EntropyParts {
  const T* logits;
  ClassTargets targets;
  float *peaks, *sums;
  int64_t rows, n, stride, parts, part_length, first;
  bool with_mean;
  int64_t* fault;
  int64_t step;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t at = lane.block(); at < rows * parts; at += lane.blocks()) {
      const int64_t row = at / parts, begin = at % parts * part_length < n ? at % parts * part_length : n;
      const int64_t end = begin + part_length < n ? begin + part_length : n;
      const T* x = logits + row * stride;
      const bool is_whole = stride % kHeldStep == 0 && (parts == 1 || part_length % kHeldStep == 0);
      const ScoreSums s = score_sums(lane, ScoreRow<T>{x + begin, end - begin, is_whole});
      if (lane.thread() != 0) continue;
      const int64_t t = targets.of(row), local = t - first;
      if (at % parts == 0) targets.check(t, fault, step);
      const bool is_here = local >= begin && local < end;
      peaks[at] = s.top;
      sums[at] = s.exps;
      sums[rows * parts + at] = is_here ? to_float(x[local]) : NAN;
      sums[2 * rows * parts + at] =
          end > begin && begin + s.first < local && begin + s.first < end ? 1.0f : 0.0f;
      if (with_mean) sums[3 * rows * parts + at] = s.total;
    }
  }
};

/// cross_entropy_total: sums over the parts relative to the largest score of all. A thread a row.
struct EntropyTotals {
  const float *peaks, *sums, *largest;
  float* out;  // [2 or 3, rows]
  int64_t rows, parts;
  bool with_mean;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    // "The target has the largest score, but so has an earlier class": too small to change the loss, yet not
    // 0.
    constexpr double kBehind = 1e-30;
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t row = lane.block() * lane.threads() + lane.thread(); row < rows; row += stride) {
      const float top = largest[row];
      double exps = 0, score = 0, sum = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t at = row * parts + part;
        const float own = sums[rows * parts + at];
        if (sums[at] != 0)
          exps +=
              static_cast<double>(sums[at]) * exp(static_cast<double>(peaks[at]) - static_cast<double>(top));
        if (own == own) score += static_cast<double>(own - top);
        if (sums[2 * rows * parts + at] != 0 && peaks[at] == top) score -= kBehind;
        if (with_mean) sum += static_cast<double>(sums[3 * rows * parts + at]);
      }
      out[row] = static_cast<float>(exps);
      out[rows + row] = static_cast<float>(score);
      if (with_mean) out[2 * rows + row] = static_cast<float>(sum);
    }
  }
};

/// cross_entropy_join: losses, log sum exp and hits of rows from the totals. A thread a row.
struct EntropyJoin {
  const float *largest, *totals;
  ClassTargets targets;
  EntropyWeights weights;
  float *loss, *log_sum_exp;
  uint8_t* correct;
  int64_t rows;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t row = lane.block() * lane.threads() + lane.thread(); row < rows; row += stride) {
      const bool counts = targets.counts(targets.of(row));
      const float log_sum = logf(totals[row]), lse = largest[row] + log_sum, score = totals[rows + row];
      float value = (1 - weights.smoothing) * (log_sum - score) + weights.z_loss * lse * lse;
      if (weights.smoothing != 0)
        value += weights.smoothing * (lse - totals[2 * rows + row] / static_cast<float>(targets.classes));
      loss[row] = counts ? value : 0.0f;
      log_sum_exp[row] = counts ? lse : 0.0f;
      correct[row] = counts && score == 0 ? 1 : 0;
    }
  }
};

}  // namespace trireme::cuda
