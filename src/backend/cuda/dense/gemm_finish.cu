// Launchers of the kernels that finish products.
#include "backend/cuda/dense/gemm_finish.h"

#include "backend/cuda/dense/gemm_finish_kernels.h"
#include "backend/cuda/device/launch.h"
#include "backend/cuda/device/types.h"
#include "backend/cuda/reduce/column_launch.h"

namespace trireme::cuda {

void finish_product(On on, const FinishArgs& a) {
  if (a.rows == 0 || a.n == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t each = a.n % kPack<T> == 0 ? kPack<T> : 1;
    const FinishProduct<T> kernel{.out = static_cast<T*>(a.out),
                                  .in = static_cast<const T*>(a.in == nullptr ? a.out : a.in),
                                  .bias = static_cast<const T*>(a.bias),
                                  .residual = static_cast<const T*>(a.residual),
                                  .aux_in = static_cast<const T*>(a.aux_in),
                                  .aux_out = static_cast<T*>(a.aux_out),
                                  .residual_row = a.residual_row,
                                  .residual_column = a.residual_column,
                                  .rows = a.rows,
                                  .n = a.n,
                                  .beta = a.beta,
                                  .act = a.act,
                                  .act_before_residual = a.act_before_residual,
                                  .from_zero = a.from_zero};
    launch(on.stream, "finish_product", flat_launch(on.stream, a.rows * a.n / each), kernel);
  });
}

int64_t column_sums_workspace_bytes(int64_t rows, int64_t n) {
  return ColumnGrid::of(rows, n, 1).pieces * n * static_cast<int64_t>(sizeof(float));
}

void column_sums(On on, const ColumnSumArgs& a, void* workspace) {
  if (a.n == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* pieces = static_cast<float*>(workspace);
    const ColumnGrid grid = ColumnGrid::of(a.rows, a.n, kPack<T>);
    if (a.rows > 0) {
      launch(on.stream, "column_sums", column_launch<T>(on.stream, grid),
             ColumnSums<T>{static_cast<const T*>(a.x), pieces, grid});
    }
    const Launch flat = flat_launch(on.stream, a.n);
    if (a.is_wide) {
      launch(on.stream, "sum_pieces", flat,
             SumPiecesInto<float>{pieces, static_cast<float*>(a.out), grid.pieces, a.n});
    } else {
      launch(on.stream, "sum_pieces", flat,
             SumPiecesInto<T>{pieces, static_cast<T*>(a.out), grid.pieces, a.n});
    }
  });
}

void row_sums(On on, const ColumnSumArgs& a) {
  if (a.rows == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Launch rows = row_launch<T>(on.stream, a.rows, a.n);
    const T* x = static_cast<const T*>(a.x);
    if (a.is_wide) {
      launch(on.stream, "row_sums", rows, RowSums<T, float>{x, static_cast<float*>(a.out), a.rows, a.n});
    } else {
      launch(on.stream, "row_sums", rows, RowSums<T, T>{x, static_cast<T*>(a.out), a.rows, a.n});
    }
  });
}

}  // namespace trireme::cuda
