// Cross entropy of rows of scores with class targets: one pass over the scores forward, one backward.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// What the loss adds to the plain negative log-likelihood of a row; see cross_entropy.
struct EntropyTerms {
  int64_t ignore_index = -100;  ///< rows with this target count nowhere
  double label_smoothing = 0;   ///< share of the target's mass spread over all classes, its own included
  double z_loss = 0;            ///< factor of the squared logarithm of the row's sum of exponentials
};

struct CrossEntropy {
  const float* logits;    // [rows, classes], rows `stride` apart
  const int64_t* target;  // [rows]; a target outside [0, classes) counts as ignored: check before
  int64_t rows = 0;
  int64_t classes = 0, stride = 0;  // stride 0: as many as classes
  EntropyTerms terms;
  float* log_sum_exp = nullptr;    // [rows]
  double* row_loss = nullptr;      // [rows]; 0 where the target is ignored
  uint8_t* row_correct = nullptr;  // [rows]: 1 where the first of the largest scores is the target's
};

/// row_loss = (1 - s) (lse - x[t]) + s (lse - mean(x)) + z lse^2 with lse = log sum exp(x).
/// 4 bytes and about 20 flop per score: each piece of 1024 is read once from memory, the running maximum and
/// sum are rescaled between pieces. A row's result depends on that row alone.
void cross_entropy(const CrossEntropy& args, base::ThreadPool& pool);

struct CrossEntropyGrad {
  const float* logits;       // [rows, classes], rows `stride` apart: of all_classes those from `first` on
  const int64_t* target;     // [rows], among all classes
  const float* log_sum_exp;  // [rows], of all classes
  float* dlogits;            // like logits, and may be they; 0 behind the classes
  int64_t rows = 0;
  int64_t classes = 0, stride = 0;  // stride 0: as many as classes
  int64_t first = 0, all_classes = 0;
  EntropyTerms terms;
  float dloss = 1;  // gradient of the sum of the row losses
};

/// dx = dloss ((1 + 2 z lse) exp(x - lse) - s / all_classes - (1 - s) [i == t]); 0 in ignored rows.
/// 8 bytes and 17 flop per score.
void cross_entropy_grad(const CrossEntropyGrad& args, base::ThreadPool& pool);

/// What one part of the classes has to say about each row, relative to the part's own maximum.
struct EntropyPart {
  const float* logits;    // [rows, classes], rows `stride` apart
  const int64_t* target;  // [rows], among all classes
  int64_t rows = 0, stride = 0;
  int64_t classes = 0;  // may be 0
  int64_t first = 0;    // the class of the first score
  float* results[5];    // each [rows], neighbours `result_stride` apart; see entropy_part
  int64_t result_stride = 1;
};

/// results: 0 the maximum m, 1 sum exp(x - m), 2 x[t] or NaN where the target is another part's, 3 1 if an
/// earlier class than t has the score m (and t does, where it is in this part), else 0, 4 (unless null) sum
/// x. A part without classes has m = -inf and sums of 0. Targets that are no class count as another part's.
/// Scores are read once: 4 bytes each.
void entropy_part(const EntropyPart& args, base::ThreadPool& pool);

/// The sum of n values in a fixed order: eight interleaved chains, folded in pairs.
double ordered_sum(const double* x, int64_t n);

}  // namespace trireme::cpu
