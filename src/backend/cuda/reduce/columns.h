// Sums of columns that several kernels take: rows in pieces, a block a piece and a run of columns, each sum
// in an order that the shape fixes.
#pragma once

#include <cstdint>

#include "backend/cuda/device/step.h"

/// Before a loop over rows: four of them are under way at a time.
#ifdef __CUDACC__
#define TRIREME_UNROLL_ROWS _Pragma("unroll 4")
#else
#define TRIREME_UNROLL_ROWS
#endif

namespace trireme::cuda {

/// How [rows, n] is cut: at most 256 pieces of rows (with 256 at least), and tiles of `lanes` threads across
/// with kPack columns each.
struct ColumnGrid {
  static constexpr int kThreads = 256;
  int64_t rows = 0, n = 0, piece_rows = 256;
  int lanes = kWarp;
  int64_t pieces = 0, across = 0;  // tiles

  static ColumnGrid of(int64_t rows, int64_t n, int pack) {
    ColumnGrid g{.rows = rows, .n = n};
    constexpr int64_t kMostPieces = 256;
    const int64_t even = (rows + kMostPieces - 1) / kMostPieces;
    if (even > g.piece_rows) g.piece_rows = even;
    while (g.lanes > 4 && (g.lanes / 2) * pack >= n) g.lanes /= 2;
    g.pieces = (rows + g.piece_rows - 1) / g.piece_rows;
    g.across = (n + g.lanes * pack - 1) / (g.lanes * pack);
    return g;
  }
  TRIREME_DEVICE int64_t last_row(int64_t piece) const {
    return (piece + 1) * piece_rows < rows ? (piece + 1) * piece_rows : rows;
  }
};

/// Bytes of shared memory of column_pieces over T.
template <class T>
inline constexpr int64_t kColumnPiecesBytes =
    ColumnGrid::kThreads* kPack<T>* static_cast<int64_t>(sizeof(float));

/// kPack elements of a row from `column` on; zeros behind its end.
template <class T>
TRIREME_DEVICE void load_columns(const T* x, const ColumnGrid& g, int64_t row, int64_t column, float* out) {
  // Rows of n % kPack != 0 elements are not aligned.
  if (g.n % kPack<T> == 0) return load_pack(x + row * g.n + column, kPack<T>, out);
  for (int i = 0; i < kPack<T>; ++i) out[i] = column + i < g.n ? to_float(x[row * g.n + column + i]) : 0.0f;
}

/// For every piece and column: add(known(column, piece), row, column, sums) for its rows, sums
/// [kSums][kPack], then store(piece, column, sums[kSums]). What is known of columns is asked for once a
/// piece.
template <class T, int kSums, class Lane, class Known, class Add, class Store>
TRIREME_DEVICE void column_pieces_of(const Lane& lane, const ColumnGrid& g, Known known, Add add,
                                     Store store) {
  float* shared = lane.template shared<float>();
  const int deep = ColumnGrid::kThreads / g.lanes, down = lane.thread() / g.lanes,
            in_row = lane.thread() % g.lanes;
  for (int64_t tile = lane.block(); tile < g.across * g.pieces; tile += lane.blocks()) {
    const int64_t piece = tile / g.across, first = tile % g.across * g.lanes * kPack<T>;
    const int64_t column = first + in_row * kPack<T>, last = g.last_row(piece);
    float sum[kSums][kPack<T>] = {};
    if (column < g.n) {
      const auto facts = known(column, piece);
      TRIREME_UNROLL_ROWS
      for (int64_t row = piece * g.piece_rows + down; row < last; row += deep) add(facts, row, column, sum);
    }
    const int columns = g.lanes * kPack<T>;
    float total[kSums] = {};
    // One thread a column; a block has as many threads as columns at least.
    for (int s = 0; s < kSums; ++s) {
      for (int i = 0; i < kPack<T>; ++i) shared[(down * kPack<T> + i) * g.lanes + in_row] = sum[s][i];
      lane.sync();
      const int c = lane.thread();
      for (int d = 0; d < deep && c < columns; ++d)
        total[s] += shared[(d * kPack<T> + c % kPack<T>)*g.lanes + c / kPack<T>];
      lane.sync();
    }
    if (lane.thread() < columns && first + lane.thread() < g.n) store(piece, first + lane.thread(), total);
  }
}

/// The same with add(row, column, piece, sums), where nothing is known.
template <class T, int kSums, class Lane, class Add, class Store>
TRIREME_DEVICE void column_pieces(const Lane& lane, const ColumnGrid& g, Add add, Store store) {
  column_pieces_of<T, kSums>(
      lane, g, [](int64_t, int64_t piece) { return piece; },
      [&](int64_t piece, int64_t row, int64_t column, float(&sum)[kSums][kPack<T>]) {
        add(row, column, piece, sum);
      },
      store);
}

/// out[i] = sum over pieces of in[piece, i], in their order, rounded once.
template <class T>
struct SumPiecesInto {
  const float* in;
  T* out;
  int64_t pieces, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < n; i += stride) {
      float total = 0;
      for (int64_t p = 0; p < pieces; ++p) total += in[p * n + i];
      out[i] = from_float<T>(total);
    }
  }
};

}  // namespace trireme::cuda
