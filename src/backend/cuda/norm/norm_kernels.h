// Norms over rows and groups, and their gradients. Statistics are f32; every sum has an order that the
// extents fix. S is the type of scale and bias: T or f32. Beside an f32 row (the residual stream of a 16-bit
// training step) gradients that arrive may be 16-bit, D, and results are written as 16 bits too, R: sums then
// have the order they have beside f32, so that a cast that is done here changes no bit.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/reduce/columns.h"
#include "backend/cuda/reduce/rows.h"

namespace trireme::cuda {

struct RowMoments {
  float mean, inverse;  // 1 / sqrt(variance + epsilon)
};

/// Mean (0 for RMS) and inverse deviation of a row. Two passes: the variance is of differences from the mean.
template <class T, class Lane>
TRIREME_DEVICE RowMoments row_moments(const Lane& lane, const T* row, int64_t n, float epsilon, bool rms) {
  float* scratch = lane.template shared<float>();
  float mean = 0;
  if (!rms) {
    float total = 0;
    for_row(lane, row, n, [&](float v, int64_t) { total += v; });
    mean = block_reduce(lane, total, scratch, Plus{}) / static_cast<float>(n);
  }
  float squares = 0;
  for_row(lane, row, n, [&](float v, int64_t) { squares += (v - mean) * (v - mean); });
  const float variance = block_reduce(lane, squares, scratch, Plus{}) / static_cast<float>(n);
  return {mean, 1.0f / sqrtf(variance + epsilon)};
}

/// y = (x - mean) inv_std scale + bias of each row; RMS norm: mean 0. sizeof(T) bytes an element and those of
/// what is written, while a row fits the cache.
template <class T, class S = float, class R = T>
struct RowNorm {
  const T* x;
  const S *scale, *bias;  // [n]; bias may be null
  T* y;                   // or null
  R* rounded;             // y as R, or null
  float *mean, *inv_std;  // [rows] or null
  int64_t rows, n;
  float epsilon;
  bool rms = false;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T* from = x + row * n;
      const RowMoments m = row_moments(lane, from, n, epsilon, rms);
      T* const to = y == nullptr ? nullptr : y + row * n;
      R* const low = rounded == nullptr ? nullptr : rounded + row * n;
      map_row_rounded<kPack<T>>(lane, RoundedRow<T, T, R>{from, to, low, n}, [&](float v, int64_t i) {
        const float normal = (v - m.mean) * m.inverse * to_float(scale[i]);
        return bias != nullptr ? normal + to_float(bias[i]) : normal;
      });
      if (lane.thread() == 0 && mean != nullptr) mean[row] = m.mean;
      if (lane.thread() == 0 && inv_std != nullptr) inv_std[row] = m.inverse;
    }
  }
};

/// Group norm: a row is the channels of one group of one image, `points` elements each.
template <class T, class S = float>
struct GroupNorm {
  const T* x;
  const S *scale, *bias;  // [channels]
  T* y;
  int64_t rows, n, points, groups;
  float epsilon;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T* from = x + row * n;
      const RowMoments m = row_moments(lane, from, n, epsilon, false);
      const int64_t channel = row % groups * (n / points);
      map_row(lane, from, y + row * n, n, [&](float v, int64_t i) {
        const int64_t c = channel + i / points;
        return (v - m.mean) * (m.inverse * to_float(scale[c])) + to_float(bias[c]);
      });
    }
  }
};

/// dx = inverse (g - mean(g) - xhat mean(g xhat)) + add, g = dy scale, of each row (RMS: without mean(g)),
/// and the row's moments for the columns. Bytes an element: those of dy, x, add and what is written.
template <class T, class S = float, class D = T, class R = T>
struct RowNormGrad {
  const D* dy;
  const T* x;
  const S* scale;       // or null: 1
  const T* add;         // or null
  T* dx;                // or null
  R* rounded;           // dx as R, or null
  RowMoments* moments;  // [rows]
  int64_t rows, n;
  float epsilon;
  bool rms = false;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T* from = x + row * n;
      const D* grad = dy + row * n;
      const RowMoments m = row_moments(lane, from, n, epsilon, rms);
      const auto up = [&](float d, int64_t i) { return scale == nullptr ? d : d * to_float(scale[i]); };
      float plain = 0, along = 0;
      for_row_by<kPack<T>>(lane, grad, n, [&](float d, int64_t i) {
        plain += up(d, i);
        along += up(d, i) * (to_float(from[i]) - m.mean) * m.inverse;
      });
      plain = rms ? 0 : block_reduce(lane, plain, scratch, Plus{}) / static_cast<float>(n);
      along = block_reduce(lane, along, scratch, Plus{}) / static_cast<float>(n);
      T* const to = dx == nullptr ? nullptr : dx + row * n;
      R* const low = rounded == nullptr ? nullptr : rounded + row * n;
      map_row_rounded<kPack<T>>(lane, RoundedRow<D, T, R>{grad, to, low, n}, [&](float d, int64_t i) {
        const float g = m.inverse * (up(d, i) - plain - (to_float(from[i]) - m.mean) * m.inverse * along);
        return add == nullptr ? g : g + to_float(add[row * n + i]);
      });
      if (lane.thread() == 0) moments[row] = m;
    }
  }
};

/// kCount elements of a row from `column` on, a multiple of kCount; zeros behind its end.
template <int kCount, class T>
TRIREME_DEVICE void load_columns_by(const T* x, const ColumnGrid& g, int64_t row, int64_t column,
                                    float* out) {
  // Rows of n % kCount != 0 elements are not aligned.
  if (g.n % kCount == 0) return load_step<kCount>(x + row * g.n + column, out);
  for (int i = 0; i < kCount; ++i) out[i] = column + i < g.n ? to_float(x[row * g.n + column + i]) : 0.0f;
}

/// dscale = sum over rows of dy xhat, dbias = sum of dy, in pieces of rows: [2, pieces, n].
template <class T, class D = T>
struct RowNormColumns {
  const D* dy;
  const T* x;
  const RowMoments* moments;
  float* sums;
  ColumnGrid grid;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    column_pieces<T, 2>(
        lane, grid,
        [&](int64_t row, int64_t column, int64_t, float(&sum)[2][kPack<T>]) {
          float d[kPack<T>], v[kPack<T>];
          load_columns_by<kPack<T>>(dy, grid, row, column, d);
          load_columns(x, grid, row, column, v);
          const RowMoments m = moments[row];
          for (int i = 0; i < kPack<T>; ++i) {
            sum[0][i] += d[i] * (v[i] - m.mean) * m.inverse;
            sum[1][i] += d[i];
          }
        },
        [&](int64_t piece, int64_t column, const float* total) {
          sums[piece * grid.n + column] = total[0];
          sums[(grid.pieces + piece) * grid.n + column] = total[1];
        });
  }
};

}  // namespace trireme::cuda
