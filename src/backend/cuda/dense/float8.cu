// Launchers of the kernels of 8-bit floats.
#include "backend/cuda/dense/float8.h"

#include "backend/cuda/dense/float8_kernels.h"
#include "backend/cuda/dense/float8_tile_kernels.h"
#include "backend/cuda/device/launch.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {

void float8_rows(On on, const Float8Args& a) {
  if (a.rows == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    const QuantizeFloat8Rows<T> kernel{
        static_cast<const T*>(a.x), a.row_codes, a.row_scales, a.rows, a.n, a.e5m2};
    launch(on.stream, "float8_rows", row_launch<T>(on.stream, a.rows, a.n), kernel);
  });
}

int64_t float8_columns_workspace_bytes(int64_t rows, int64_t n) {
  const auto tiles = Float8Tiles<float>::of(rows, n);
  return (tiles.across * rows + 2 * tiles.down * n) * static_cast<int64_t>(sizeof(uint32_t));
}

void float8_columns(On on, const Float8Args& a, void* workspace) {
  if (a.n == 0) return float8_rows(on, a.row_codes == nullptr ? Float8Args{} : a);
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    using Tiles = Float8Tiles<T>;
    const Tiles tiles = Tiles::of(a.rows, a.n);
    const bool has_rows = a.row_codes != nullptr;
    auto* column_most = static_cast<uint32_t*>(workspace);
    auto* sums = reinterpret_cast<float*>(column_most + tiles.down * a.n);
    float* pieces = a.column_sums == nullptr ? nullptr : sums;
    uint32_t* row_most = has_rows ? column_most + 2 * tiles.down * a.n : nullptr;
    const auto grid = [&](int64_t shared_bytes) {
      return Launch{blocks_for(cuda_stream(on.stream), tiles.across * tiles.down, 32), Tiles::kThreads,
                    shared_bytes};
    };
    if (a.rows > 0) {
      constexpr auto kMostBytes = static_cast<int64_t>(sizeof(uint32_t)) * Tiles::kWarps * Tiles::kSide;
      launch(on.stream, "float8_magnitudes", grid(kMostBytes),
             FindMagnitudes<T>{static_cast<const T*>(a.x), row_most, column_most, pieces, tiles});
    }
    const Float8Scales scales{.row_most = row_most,
                              .column_most = column_most,
                              .row_scales = a.row_scales,
                              .column_scales = a.column_scales,
                              .pieces = pieces,
                              .column_sums = a.column_sums,
                              .rows = has_rows ? a.rows : 0,
                              .row_parts = tiles.across,
                              .n = a.n,
                              .column_parts = tiles.down,
                              .e5m2 = a.e5m2};
    launch(on.stream, "float8_scales", flat_launch(on.stream, scales.rows + a.n), scales);
    if (a.rows == 0) return;
    const QuantizeFloat8Tiles<T> kernel{.x = static_cast<const T*>(a.x),
                                        .row_scales = a.row_scales,
                                        .column_scales = a.column_scales,
                                        .row_codes = a.row_codes,
                                        .column_codes = a.column_codes,
                                        .padded = a.padded,
                                        .tiles = tiles,
                                        .e5m2 = a.e5m2};
    launch(on.stream, "float8_tiles", grid(Tiles::kSide * QuantizeFloat8Tiles<T>::kStride), kernel);
  });
}

void float8_values(On on, const Float8ValuesArgs& a) {
  if (a.rows * a.n == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "float8_values", flat_launch(on.stream, a.rows * a.n),
           Float8Values<T>{a.codes, a.scales, static_cast<T*>(a.y), a.rows, a.n, a.e5m2});
  });
}

void finish_scaled(On on, const ScaledFinishArgs& a) {
  if (a.m * a.n == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t each = a.n % kPack<T> == 0 ? kPack<T> : 1;
    const FinishScaled<T> kernel{.product = a.product,
                                 .scale_a = a.scale_a,
                                 .scale_b = a.scale_b,
                                 .bias = static_cast<const T*>(a.bias),
                                 .residual = static_cast<const T*>(a.residual),
                                 .out = static_cast<T*>(a.out),
                                 .m = a.m,
                                 .n = a.n,
                                 .act = a.act,
                                 .act_before_residual = a.act_before_residual};
    launch(on.stream, "finish_scaled", flat_launch(on.stream, a.m * a.n / each), kernel);
  });
}

}  // namespace trireme::cuda
