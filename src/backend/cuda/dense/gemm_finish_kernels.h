// Kernels behind products: bias, residual and activation in one pass; sums of rows and columns.
#pragma once

#include "backend/cuda/dense/activation.h"
#include "backend/cuda/reduce/columns.h"
#include "backend/cuda/reduce/rows.h"

namespace trireme::cuda {

/// See FinishArgs. 2 sizeof(T) bytes an element, and sizeof(T) for each of residual and aux.
template <class T>
struct FinishProduct {
  T* out;
  const T *in, *bias, *residual, *aux_in;
  T* aux_out;
  int64_t residual_row, residual_column, rows, n;
  float beta;
  ActivationForm act;
  bool act_before_residual, from_zero;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    // A thread's elements are neighbours of one row.
    const int64_t each = n % kPack<T> == 0 ? kPack<T> : 1, step = lane.blocks() * lane.threads() * each;
    for (int64_t at = (lane.block() * lane.threads() + lane.thread()) * each; at < rows * n; at += step) {
      float value[kPack<T>];
      if (from_zero) {
        for (float& v : value) v = 0;
      } else {
        load_pack(in + at, each, value);
      }
      finish(at, each, value);
      store_pack(value, each, out + at);
    }
  }

 private:
  TRIREME_DEVICE void finish(int64_t at, int64_t each, float* value) const {
    const bool has_place = residual != nullptr || bias != nullptr;  // else two divisions for nothing
    const int64_t row = has_place ? at / n : 0, column = has_place ? at - row * n : 0;
    float add[kPack<T>], slope_at[kPack<T>] = {};
    for (int i = 0; i < kPack<T>; ++i) {
      const bool is_there = residual != nullptr && i < each;
      add[i] =
          is_there ? beta * to_float(residual[row * residual_row + (column + i) * residual_column]) : 0.0f;
      if (bias != nullptr && i < each) value[i] += to_float(bias[column + i]);
      if (!act_before_residual) value[i] += add[i];
    }
    if (aux_out != nullptr) store_pack(value, each, aux_out + at);
    if (aux_in != nullptr) load_pack(aux_in + at, each, slope_at);
    for (int i = 0; i < kPack<T>; ++i) {
      value[i] = aux_in != nullptr ? value[i] * activation_slope(act, slope_at[i]) : activate(act, value[i]);
      if (act_before_residual) value[i] += add[i];
    }
  }
};

/// Sums of columns over pieces of rows: pieces [grid.pieces, n]. sizeof(T) bytes an element.
template <class T>
struct ColumnSums {
  const T* x;
  float* pieces;
  ColumnGrid grid;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    column_pieces<T, 1>(
        lane, grid,
        [&](int64_t row, int64_t column, int64_t, float(&sum)[1][kPack<T>]) {
          float v[kPack<T>];
          load_columns(x, grid, row, column, v);
          for (int i = 0; i < kPack<T>; ++i) sum[0][i] += v[i];
        },
        [&](int64_t piece, int64_t column, const float* total) {
          pieces[piece * grid.n + column] = total[0];
        });
  }
};

/// out[row] = sum of the row, a block each. sizeof(T) bytes an element.
template <class T, class Out>
struct RowSums {
  const T* x;
  Out* out;
  int64_t rows, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      float total = 0;
      for_row(lane, x + row * n, n, [&](float v, int64_t) { total += v; });
      total = block_reduce(lane, total, scratch, Plus{});
      if (lane.thread() == 0) out[row] = from_float<Out>(total);
    }
  }
};

}  // namespace trireme::cuda
