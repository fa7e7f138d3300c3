// Internal: products summed over pixels, c[m, n] += sum over k of a[k, m] b[k, n], for weight gradients.
#pragma once

#include <cstdint>

#include "backend/cpu/tiles/dense_kernels.h"

namespace trireme::cpu {

/// Columns of a packed left operand: [m / kTnRows][k][kTnRows].
inline constexpr int kTnRows = kRowSlots;

/// Rows of a source to be packed: row i is `columns` floats at from + i * stride.
struct ColumnCopy {
  const float* from;  // null: zeros
  int64_t stride;
  int64_t rows;
  int64_t columns;
  float* to;  // panels [columns / width][rows_total][width]: this copy starts at row `first`
  int64_t first, rows_total;
  int width;       // of a panel; columns beyond `columns` are filled with zeros
  int narrow = 0;  // width of a last panel with no more columns than that; 0: as wide as the others
};

/// Floats of a packed row of `columns` columns whose last panel may be one vector wide.
inline int64_t tn_row_floats(int64_t columns, const DenseKernels& kernels) {
  const int64_t rest = columns % kernels.panel;
  return columns - rest + (rest == 0 ? 0 : rest <= kernels.width ? kernels.width : kernels.panel);
}

/// Packs columns into panels, vector by vector.
void copy_columns(const ColumnCopy& copy);

/// Both operands packed over k: a [m / kTnRows][k][kTnRows], b [n / panel][k][panel], its last panel
/// [k][width] if no more columns are left, unless `whole_panels`.
struct TnBlock {
  const float* a = nullptr;
  const float* b = nullptr;
  int64_t k = 0, m = 0, n = 0;
  float* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false;
  bool whole_panels = false;
};

/// Each element is one multiply-add chain in rising k, which `accumulate` adds to c.
void multiply_tn(const TnBlock& block, const DenseKernels& kernels);

/// Adds `count` arrays of n floats, `stride` apart, into the first: a tree of fixed shape. [begin, end) of n.
void sum_tree(float* parts, int64_t count, int64_t stride, int64_t begin, int64_t end);

}  // namespace trireme::cpu
