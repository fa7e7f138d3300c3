// Launchers of cross entropy and its steps.
#pragma once

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// Targets [rows], i64 or i32; of `classes` in all. Bad ones are reported at `fault` (ir::RunArgs).
struct TargetArgs {
  const void* at = nullptr;
  bool is_wide = true;
  int64_t ignored = -100, classes = 0;
  int64_t* fault = nullptr;
  int64_t step = 0;
};

/// Sums over rows, one f32 number each, and log sum exp [rows]; any may be null.
struct EntropyResults {
  float *loss = nullptr, *log_sum_exp = nullptr, *count = nullptr, *hits = nullptr;
};

struct CrossEntropyArgs {
  const void* logits = nullptr;  ///< [rows, n + padded]
  TargetArgs targets;
  float smoothing = 0, z_loss = 0;
  int64_t rows = 0, n = 0, padded = 0;  ///< scores of classes in a row, and behind them
  void* workspace = nullptr;
};
int64_t cross_entropy_workspace_bytes(int64_t rows);
void cross_entropy(On on, const CrossEntropyArgs& args, const EntropyResults& results);

/// `dloss`: one number; `first`: the class of the first score.
struct CrossEntropyGradArgs {
  CrossEntropyArgs of;
  const float *log_sum_exp = nullptr, *dloss = nullptr;
  void* dlogits = nullptr;
  int64_t first = 0;
};
void cross_entropy_grad(On on, const CrossEntropyGradArgs& args);

/// peaks [rows, parts] and sums [3 or 4, rows, parts] of parts of `part_length` classes.
struct EntropyPartArgs {
  CrossEntropyArgs of;
  float *peaks = nullptr, *sums = nullptr;
  int64_t parts = 1, part_length = 0, first = 0;
};
void entropy_part(On on, const EntropyPartArgs& args);

struct EntropyTotalArgs {
  const float *peaks = nullptr, *sums = nullptr, *largest = nullptr;
  float* out = nullptr;  ///< [2 or 3, rows]
  int64_t rows = 0, parts = 1;
  bool with_mean = false;
};
void entropy_total(tensor::Stream& stream, const EntropyTotalArgs& args);

/// `of.logits` is not read.
void entropy_join(tensor::Stream& stream, const CrossEntropyArgs& of, const float* largest,
                  const float* totals, const EntropyResults& results);

}  // namespace trireme::cuda
