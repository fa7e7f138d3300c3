// Rows that meet one of several matrices each: which rows take which, and the rows side by side.
#pragma once

#include <cstdint>
#include <span>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// Rows [first, first + rows) of those sorted by matrix take `matrix`.
struct RowGroup {
  int64_t matrix = 0, first = 0, rows = 0;
};

/// Where a call writes its order: place [rows] and source [rows] are inverse to one another, groups
/// [min(rows, matrices)], counts [matrices].
struct RowOrder {
  int64_t* place = nullptr;   ///< of each row among the sorted ones; -1: its matrix is elsewhere
  int64_t* source = nullptr;  ///< the row that stands at each place
  RowGroup* groups = nullptr;
  int64_t* counts = nullptr;
};

/// Sorts rows by the matrix that each takes, rows of one matrix in their order. Matrix m is the one that
/// chosen [rows] calls first + m; rows that chose one beyond [0, matrices) are left out. Returns the groups
/// that have rows, by matrix.
std::span<const RowGroup> group_rows(std::span<const int64_t> chosen, int64_t matrices, const RowOrder& order,
                                     int64_t first = 0);
/// The rows of all groups together.
inline int64_t rows_of(std::span<const RowGroup> groups) {
  return groups.empty() ? 0 : groups.back().first + groups.back().rows;
}

/// to[i] = from[source[i] / share]: rows of `width` floats, each of which `share` neighbours read; zeros
/// where source[i] is -1.
struct RowCopy {
  const float* from = nullptr;
  float* to = nullptr;
  const int64_t* source = nullptr;
  int64_t rows = 0, width = 0, share = 1;
};
void copy_rows(const RowCopy& copy, base::ThreadPool& pool);

/// y[t] = sum over j, in rising order, of weights[t, j] rows[place[t, j]], of those whose place is not -1.
/// y [tokens, width], weights and place [tokens, choices].
struct RowSums {
  const float *rows = nullptr, *weights = nullptr;
  const int64_t* place = nullptr;
  float* y = nullptr;
  int64_t tokens = 0, choices = 0, width = 0;
};
void sum_rows(const RowSums& sums, base::ThreadPool& pool);

}  // namespace trireme::cpu
