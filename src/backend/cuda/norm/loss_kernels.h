// Cross entropy of rows of scores with class targets, its gradient, and its steps where classes are split
// over ranks.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/norm/score_sums.h"
#include "backend/cuda/reduce/rows.h"

namespace trireme::cuda {

/// Targets [rows] as i64 or i32; which of them count.
struct ClassTargets {
  const void* at;
  bool is_wide;
  int64_t ignored, classes;  // classes in all

  TRIREME_DEVICE int64_t of(int64_t row) const {
    return is_wide ? static_cast<const int64_t*>(at)[row] : static_cast<const int32_t*>(at)[row];
  }
  TRIREME_DEVICE bool counts(int64_t t) const { return t != ignored && t >= 0 && t < classes; }
  /// A target that is neither a class nor ignored is bad data.
  TRIREME_DEVICE void check(int64_t t, int64_t* fault, int64_t step) const {
    if (!counts(t) && t != ignored) report_fault(fault, step, t);
  }
};

struct EntropyWeights {
  float smoothing = 0, z_loss = 0;
};

/// The loss of each row, its log sum exp (0 in rows that do not count), and whether the first of the largest
/// scores is the target's. One pass. sizeof(T) bytes a score.
template <class T>
struct CrossEntropyRows {
  const T* logits;
  ClassTargets targets;
  EntropyWeights weights;
  float *loss, *log_sum_exp;
  uint8_t* correct;
  int64_t rows, n, stride;  // of `stride` scores in a row n are of classes
  int64_t* fault;
  int64_t step;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T* x = logits + row * stride;
      const ScoreSums s = score_sums(lane, ScoreRow<T>{x, n, stride % kHeldStep == 0});
      if (lane.thread() != 0) continue;
      const int64_t t = targets.of(row);
      targets.check(t, fault, step);
      const bool counts = targets.counts(t);
      const float lse = s.top + logf(s.exps);
      float value =
          counts ? (1 - weights.smoothing) * (lse - to_float(x[t])) + weights.z_loss * lse * lse : 0.0f;
      // Without smoothing a score of -inf does no harm: 0 * inf must not come in.
      if (counts && weights.smoothing != 0)
        value += weights.smoothing * (lse - s.total / static_cast<float>(n));
      log_sum_exp[row] = counts ? lse : 0.0f;
      loss[row] = value;
      correct[row] = counts && s.first == t ? 1 : 0;
    }
  }
};

/// The sums over rows: losses in f64, rows that count, hits. One block; the order depends on the number of
/// rows alone.
struct CrossEntropySums {
  const float* loss;
  const uint8_t* correct;
  ClassTargets targets;
  float *out, *count, *hits;  // one number each, or null
  int64_t rows;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    double* scratch = lane.template shared<double>();
    double sum = 0, valid = 0, right = 0;
    for (int64_t row = lane.thread(); row < rows; row += lane.threads()) {
      sum += static_cast<double>(loss[row]);
      valid += targets.counts(targets.of(row)) ? 1 : 0;
      right += correct[row];
    }
    const auto plus = [](double a, double b) { return a + b; };
    sum = block_reduce(lane, sum, scratch, plus);
    valid = block_reduce(lane, valid, scratch, plus);
    right = block_reduce(lane, right, scratch, plus);
    if (lane.thread() != 0) return;
    if (out != nullptr) *out = static_cast<float>(sum);
    if (count != nullptr) *count = static_cast<float>(valid);
    if (hits != nullptr) *hits = static_cast<float>(right);
  }
};

/// dx = dloss ((1 + 2 z lse) exp(x - lse) - s/classes - (1 - s)[first + i == target]); 0 in rows that do not
/// count, and behind the classes. 2 sizeof(T) bytes a score.
template <class T>
struct CrossEntropyGradRows {
  const T* logits;
  ClassTargets targets;
  EntropyWeights weights;
  const float *log_sum_exp, *dloss;  // dloss: one number
  T* dlogits;
  int64_t rows, n, stride, first;
  int64_t* fault;
  int64_t step;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const float d = *dloss;
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const int64_t t = targets.of(row);
      if (lane.thread() == 0) targets.check(t, fault, step);
      const bool counts = targets.counts(t);
      const float lse = log_sum_exp[row], share = 1 + 2 * weights.z_loss * lse;
      const float even = weights.smoothing / static_cast<float>(targets.classes);
      map_scores(lane, row * stride, [&](float v, int64_t i) {
        const float own = first + i == t ? 1 - weights.smoothing : 0.0f;
        return counts && i < n ? d * (share * expf(v - lse) - even - own) : 0.0f;
      });
    }
  }

 private:
  /// dlogits = f(logits, index) of the row at `begin`, kScoreSteps at a time.
  template <class Lane, class F>
  TRIREME_DEVICE void map_scores(const Lane& lane, int64_t begin, F f) const {
    const T* from = logits + begin;
    T* to = dlogits + begin;
    if (stride % kHeldStep != 0) {
      for (int64_t i = lane.thread(); i < stride; i += lane.threads())
        to[i] = from_float<T>(f(to_float(from[i]), i));
      return;
    }
    const int64_t wide = int64_t{lane.threads()} * kHeldStep;
    for (int64_t at = int64_t{lane.thread()} * kHeldStep; at < stride; at += kScoreSteps * wide) {
      float v[kScoreSteps][kHeldStep] = {};
      TRIREME_UNROLL
      for (int s = 0; s < kScoreSteps; ++s) {
        if (at + s * wide < stride) load_held_step(from + at + s * wide, v[s]);
      }
      TRIREME_UNROLL
      for (int s = 0; s < kScoreSteps; ++s) {
        const int64_t i = at + s * wide;
        TRIREME_UNROLL
        for (int j = 0; j < kHeldStep; ++j) v[s][j] = f(v[s][j], i + j);
        if (i < stride) store_held_step(v[s], to + i);
      }
    }
  }
};

}  // namespace trireme::cuda
