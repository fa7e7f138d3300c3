// Launchers of what follows a product: bias, residual, activation, and sums of columns.
#pragma once

#include "backend/cuda/dense/activation.h"
#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// out = act(z + beta residual) or act(z) + beta residual or act'(aux) z, z = product + bias; rows of n
/// elements. The product is at `in`, or `out`'s old content where that is null, or 0 with `from_zero`.
struct FinishArgs {
  void* out = nullptr;
  const void* in = nullptr;
  bool from_zero = false;
  const void *bias = nullptr, *residual = nullptr;
  int64_t residual_row = 0, residual_column = 0;
  float beta = 1;
  ActivationForm act;
  bool act_before_residual = false;
  void* aux_out = nullptr;
  const void* aux_in = nullptr;
  int64_t rows = 0, n = 0;
};
void finish_product(On on, const FinishArgs& args);

/// out [n] = sums of the columns of x [rows, n], in pieces of rows that depend on nothing else. `out` is f32
/// or of x's type.
struct ColumnSumArgs {
  const void* x = nullptr;
  void* out = nullptr;
  int64_t rows = 0, n = 0;
  bool is_wide = false;  ///< out is f32 though x is 16-bit
};
int64_t column_sums_workspace_bytes(int64_t rows, int64_t n);
void column_sums(On on, const ColumnSumArgs& args, void* workspace);

/// out [rows] = sums of the rows of x [rows, n].
void row_sums(On on, const ColumnSumArgs& args);

}  // namespace trireme::cuda
