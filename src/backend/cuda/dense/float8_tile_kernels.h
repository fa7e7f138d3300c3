// Kernels of 8-bit floats by columns, and by rows and columns together: tiles of a matrix, read twice.
#pragma once

#include "backend/cuda/dense/float8_codes.h"

namespace trireme::cuda {

/// Square tiles of x: how 256 threads share one.
template <class T>
struct Float8Tiles {
  static constexpr int kSide = 64, kThreads = 256;
  static constexpr int kAcross = kSide / kPack<T>, kDeep = kThreads / kAcross, kSteps = kSide / kDeep;
  static constexpr int kWarps = kThreads / kWarp;
  int64_t rows = 0, n = 0, across = 0, down = 0;
  static Float8Tiles of(int64_t rows, int64_t n) {
    return {rows, n, (n + kSide - 1) / kSide, (rows + kSide - 1) / kSide};
  }
};

/// Largest magnitudes of each tile's rows, row_most [across, rows] (or null), and columns, column_most [down,
/// n]; and the sums of these columns, pieces [down, n] (or null). sizeof(T) bytes an element.
template <class T>
struct FindMagnitudes {
  using Tiles = Float8Tiles<T>;
  const T* x;
  uint32_t *row_most, *column_most;
  float* pieces;
  Tiles tiles;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    auto* shared = lane.template shared<uint32_t>();  // [kWarps, kSide]
    const int in_row = lane.thread() % Tiles::kAcross, deep = lane.thread() / Tiles::kAcross;
    for (int64_t tile = lane.block(); tile < tiles.across * tiles.down; tile += lane.blocks()) {
      const int64_t tile_row = tile / tiles.across, tile_column = tile % tiles.across;
      const int64_t column = tile_column * Tiles::kSide + in_row * kPack<T>;
      uint32_t most[kPack<T>] = {};
      float sum[kPack<T>] = {};
      for (int s = 0; s < Tiles::kSteps; ++s) {
        const int64_t row = tile_row * Tiles::kSide + s * Tiles::kDeep + deep;
        uint32_t own = 0;
        if (row < tiles.rows) {
          float v[kPack<T>];
          load_part(x + row * tiles.n, column, tiles.n, v);
          for (int i = 0; i < kPack<T>; ++i) {
            const uint32_t bits = tensor::magnitude_bits(v[i]);
            most[i] = LargerBits{}(most[i], bits);
            sum[i] += v[i];
            own = LargerBits{}(own, bits);
          }
        }
        if (row_most == nullptr) continue;
        for (int mask = 1; mask < Tiles::kAcross; mask *= 2)
          own = LargerBits{}(own, lane.shuffle_xor(own, mask));
        if (in_row == 0 && row < tiles.rows) row_most[tile_column * tiles.rows + row] = own;
      }
      const int64_t first = tile_column * Tiles::kSide, at = tile_row * tiles.n + first;
      gather_columns<LargerBits>(lane, most, shared, column_most + at, tiles.n - first);
      if (pieces == nullptr) continue;
      gather_columns<Plus>(lane, sum, reinterpret_cast<float*>(shared), pieces + at, tiles.n - first);
    }
  }

 private:
  /// Over the rows of a warp by shuffles, over the warps through shared memory in their order.
  template <class Combine, class Lane, class V>
  TRIREME_DEVICE void gather_columns(const Lane& lane, V* value, V* shared, V* out, int64_t columns) const {
    const Combine combine{};
    for (int i = 0; i < kPack<T>; ++i) {
      for (int mask = Tiles::kAcross; mask < kWarp; mask *= 2)
        value[i] = combine(value[i], lane.shuffle_xor(value[i], mask));
    }
    const int in_warp = lane.thread() % kWarp, warp = lane.thread() / kWarp;
    if (in_warp < Tiles::kAcross) {
      for (int i = 0; i < kPack<T>; ++i) shared[warp * Tiles::kSide + in_warp * kPack<T> + i] = value[i];
    }
    lane.sync();
    if (lane.thread() < Tiles::kSide && lane.thread() < columns) {
      V all = shared[lane.thread()];
      for (int w = 1; w < Tiles::kWarps; ++w) all = combine(all, shared[w * Tiles::kSide + lane.thread()]);
      out[lane.thread()] = all;
    }
    lane.sync();
  }
};

/// scales[i] from most [parts, count], first of rows and then of columns; sums of columns from their pieces.
struct Float8Scales {
  static constexpr bool kIndependent = true;
  const uint32_t *row_most, *column_most;
  float *row_scales, *column_scales;
  const float* pieces;
  float* column_sums;                        // or null
  int64_t rows, row_parts, n, column_parts;  // rows 0: none are asked for
  bool e5m2;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t step = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < rows + n; i += step) {
      const bool is_row = i < rows;
      const int64_t at = is_row ? i : i - rows, count = is_row ? rows : n;
      const int64_t parts = is_row ? row_parts : column_parts;
      const uint32_t* from = is_row ? row_most : column_most;
      uint32_t most = 0;
      for (int64_t p = 0; p < parts; ++p) most = LargerBits{}(most, from[p * count + at]);
      (is_row ? row_scales : column_scales)[at] = tensor::float8_scale(most, Float8Form::of(e5m2));
      if (is_row || column_sums == nullptr) continue;
      float sum = 0;
      for (int64_t p = 0; p < parts; ++p) sum += pieces[p * n + at];
      column_sums[at] = sum;
    }
  }
};

/// Codes of a tile's rows (or null) and, through shared memory, of its columns. sizeof(T) + 1 bytes an
/// element each.
template <class T>
struct QuantizeFloat8Tiles {
  using Tiles = Float8Tiles<T>;
  static constexpr int kStride = Tiles::kSide + 4;  // bytes; columns 17 words apart
  const T* x;
  const float *row_scales, *column_scales;
  uint8_t *row_codes, *column_codes;
  int64_t padded;
  Tiles tiles;
  bool e5m2;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    auto* shared = lane.template shared<uint8_t>();  // [kSide, kStride]
    const int in_row = lane.thread() % Tiles::kAcross, deep = lane.thread() / Tiles::kAcross;
    for (int64_t tile = lane.block(); tile < tiles.across * tiles.down; tile += lane.blocks()) {
      const int64_t first_row = tile / tiles.across * Tiles::kSide;
      const int64_t first = tile % tiles.across * Tiles::kSide, column = first + in_row * kPack<T>;
      float inverse[kPack<T>];
      for (int i = 0; i < kPack<T>; ++i)
        inverse[i] = column + i < tiles.n ? tensor::float8_inverse(column_scales[column + i]) : 0.0f;
      for (int s = 0; s < Tiles::kSteps; ++s) {
        const int in_tile = s * Tiles::kDeep + deep;
        const int64_t row = first_row + in_tile;
        float v[kPack<T>] = {};
        if (row < tiles.rows) {
          load_part(x + row * tiles.n, column, tiles.n, v);
          if (row_codes != nullptr) store_row(v, row, column);
        }
        for (int i = 0; i < kPack<T>; ++i) {
          const uint8_t code = row < tiles.rows ? float8_byte(v[i] * inverse[i], e5m2) : uint8_t{0};
          shared[(in_row * kPack<T> + i) * kStride + in_tile] = code;
        }
      }
      lane.sync();
      store_columns(lane, shared, first_row, first);
      lane.sync();
    }
  }

 private:
  TRIREME_DEVICE void store_row(const float* v, int64_t row, int64_t column) const {
    const float inverse = tensor::float8_inverse(row_scales[row]);
    uint8_t* at = row_codes + row * tiles.n + column;
    if (tiles.n % kPack<T> == 0) {
      if (column < tiles.n) store_codes<T>(v, inverse, e5m2, kPack<T>, at);
      return;
    }
    for (int i = 0; i < kPack<T>; ++i) {
      if (column + i < tiles.n) at[i] = float8_byte(v[i] * inverse, e5m2);
    }
  }

  /// 16 codes of a column each thread.
  template <class Lane>
  TRIREME_DEVICE void store_columns(const Lane& lane, const uint8_t* shared, int64_t first_row,
                                    int64_t first) const {
    struct alignas(16) Words {
      uint32_t word[4];
    };
    static_assert(Tiles::kThreads * 16 == Tiles::kSide * Tiles::kSide);
    const int c = lane.thread() / 4, part = lane.thread() % 4 * 16;
    if (first + c >= tiles.n || first_row + part >= padded) return;
    const auto* from = reinterpret_cast<const uint32_t*>(shared + c * kStride + part);
    *reinterpret_cast<Words*>(column_codes + (first + c) * padded + first_row +
                              part) = {{from[0], from[1], from[2], from[3]}};
  }
};

}  // namespace trireme::cuda
