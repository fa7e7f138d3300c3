// The gradients of layer norm: towards x by rows, towards scale and bias by columns.
#pragma once

#include <cstdint>

#include "backend/cuda/row_kernels.h"

namespace trireme::cuda {

/// dx = inv_std (g - mean(g) - xhat mean(g xhat)), g = dy scale, of each row. 3 sizeof(T) bytes an element.
template <class T>
struct LayerNormGradX {
  const T *dy, *x;
  const float *scale, *mean, *inv_std;
  T* dx;
  int64_t rows, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T *from = x + row * n, *grad = dy + row * n;
      const float m = mean[row], r = inv_std[row];
      float plain = 0, along = 0;
      for_row(lane, grad, n, [&](float d, int64_t i) {
        const float g = d * scale[i];
        plain += g;
        along += g * (to_float(from[i]) - m) * r;
      });
      plain = block_reduce(lane, plain, scratch, Plus{}) / static_cast<float>(n);
      along = block_reduce(lane, along, scratch, Plus{}) / static_cast<float>(n);
      map_row(lane, grad, dx + row * n, n, [&](float d, int64_t i) {
        return r * (d * scale[i] - plain - (to_float(from[i]) - m) * r * along);
      });
    }
  }
};

/// Sums over rows of one column block each, in pieces of kPieceRows rows: partial [pieces, n]; the second
/// launch adds the pieces in their order. dscale = sum dy xhat, dbias = sum dy.
template <class T>
struct LayerNormGradScale {
  static constexpr int64_t kPieceRows = 128;
  const T *dy, *x;
  const float *mean, *inv_std;
  float *scale_pieces, *bias_pieces;  // [ceil(rows / kPieceRows), n]
  int64_t rows, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t column_blocks = (n + lane.threads() - 1) / lane.threads();
    const int64_t piece = lane.block() / column_blocks;
    const int64_t column = lane.block() % column_blocks * lane.threads() + lane.thread();
    if (column >= n) return;
    const int64_t last = (piece + 1) * kPieceRows < rows ? (piece + 1) * kPieceRows : rows;
    float along = 0, plain = 0;
    for (int64_t row = piece * kPieceRows; row < last; ++row) {
      const float d = to_float(dy[row * n + column]);
      along += d * (to_float(x[row * n + column]) - mean[row]) * inv_std[row];
      plain += d;
    }
    scale_pieces[piece * n + column] = along;
    bias_pieces[piece * n + column] = plain;
  }
};

/// out[i] = sum over pieces of in[piece, i], in their order.
struct SumPieces {
  const float* in;
  float* out;
  int64_t pieces, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < n; i += stride) {
      float total = 0;
      for (int64_t p = 0; p < pieces; ++p) total += in[p * n + i];
      out[i] = total;
    }
  }
};

}  // namespace trireme::cuda
