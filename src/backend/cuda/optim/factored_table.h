// Adafactor's matrices in one launch: which rows and columns a block takes, and what all kernels share.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/optim/trust_rules.h"

namespace trireme::cuda {

/// Rows of a part, whose column sums one thread adds up.
inline constexpr int64_t kFactoredPartRows = 128;
inline constexpr int64_t kFactoredTask = 8192;  // elements, about

inline int64_t factored_parts(int64_t rows) { return (rows + kFactoredPartRows - 1) / kFactoredPartRows; }
/// Column sums that wait for their join.
inline int64_t factored_partials(int64_t matrices, int64_t rows, int64_t cols) {
  const int64_t parts = factored_parts(rows);
  return parts > 1 ? matrices * parts * cols : 0;
}

/// A parameter [matrices, rows, cols] with its states and its share of the workspace.
struct FactoredGroup {
  const float *param, *grad, *row, *col;
  float *param_out, *row_out, *col_out;
  int64_t matrices, rows, cols;
  RoundedCopy copy;
  double *partial, *mean, *param_squares, *update_squares;  // [matrices, parts, cols], [matrices], [rows]
  int64_t parts, task_rows;
  int width;  // lanes of a row: a power of two
};

/// Fits the parameters of a launch.
struct FactoredTable {
  static constexpr int kMost = 32;
  FactoredGroup group[kMost];
  int64_t first_task[kMost + 1];    // of runs of task_rows rows
  int64_t first_column[kMost + 1];  // of columns of parts
  int count;

  void add(FactoredGroup g, double* partial, double* mean, double* param, double* update) {
    g.partial = partial;
    g.mean = mean;
    g.param_squares = param;
    g.update_squares = update;
    g.parts = factored_parts(g.rows);
    for (g.width = 1; g.width < kWarp && g.width < g.cols;) g.width *= 2;
    const int64_t at_once = 256 / g.width;  // rows that a block of 256 threads takes at a time
    g.task_rows = (kFactoredTask / g.cols + at_once) / at_once * at_once;
    const int64_t all = g.matrices * g.rows;
    first_task[count + 1] = first_task[count] + (all + g.task_rows - 1) / g.task_rows;
    first_column[count + 1] = first_column[count] + g.matrices * g.parts * g.cols;
    group[count++] = g;
  }
  TRIREME_DEVICE int group_of(const int64_t* first, int64_t at) const {
    int low = 0, high = count;  // first[low] <= at < first[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      first[middle] <= at ? low = middle : high = middle;
    }
    return low;
  }
};

/// Numbers of a step and constants of a node.
struct FactoredRule {
  const TrustNumbers* numbers;
  double eps1;
  float floor;
  FactoredStep step;
};

/// f(group, number in the table, row, is one, lane of the row) for the rows of the tasks of this block; all
/// threads of a warp call f equally often.
template <class Lane, class F>
TRIREME_DEVICE void for_factored_rows(const Lane& lane, const FactoredTable& table, F f) {
  for (int64_t task = lane.block(); task < table.first_task[table.count]; task += lane.blocks()) {
    const int number = table.group_of(table.first_task, task);
    const FactoredGroup& g = table.group[number];
    const int64_t all = g.matrices * g.rows, first = (task - table.first_task[number]) * g.task_rows;
    const int at_once = lane.threads() / g.width;
    for (int64_t i = lane.thread() / g.width; i < g.task_rows; i += at_once)
      f(g, number, first + i, first + i < all, lane.thread() % g.width);
  }
}

/// The sum over the lanes of a row, the same in each.
template <class Lane>
TRIREME_DEVICE double row_total(const Lane& lane, double value, int width) {
  for (int mask = width / 2; mask > 0; mask /= 2) value += lane.shuffle_xor(value, mask);
  return value;
}

TRIREME_DEVICE double squared(float x) { return static_cast<double>(x) * static_cast<double>(x); }

/// Running mean: old + take (mean - old).
TRIREME_DEVICE float blended(const TrustNumbers& k, float old, double mean) {
  if (k.is_skipped != 0) return old;
  return exact::plus(old, exact::times(k.take, exact::plus(static_cast<float>(mean), -old)));
}

}  // namespace trireme::cuda
