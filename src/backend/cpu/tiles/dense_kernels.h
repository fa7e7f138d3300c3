// Internal: the table of vector kernels that each instruction-set level provides, and their arguments.
#pragma once

#include <cstdint>

#include "backend/cpu/tiles/dense_epilogue.h"
#include "backend/cpu/tiles/dense_isa.h"

namespace trireme::cpu {

inline constexpr int kMaxTileRows = 14;

/// Rows of a packed activation panel and of a row-pointer table are padded to this many entries.
inline constexpr int kRowSlots = 16;
inline constexpr int kTileFloats = 512;  // results of a tile of f32 at most

/// One register tile: c[rows, n] (+)= a[rows, k] * b[k, panel]. Activations come either packed (`a`) or by
/// `rows`. Every output element is one chain of fused multiply-adds in rising k, so no tiling choice changes
/// a bit of it.
struct GemmTile {
  const float* a = nullptr;            // packed [k, kRowSlots], or null
  const float* const* rows = nullptr;  // [segments, kRowSlots] pointers, used when a is null
  const int32_t* lengths = nullptr;    // [segments]; their sum is k
  int segments = 0;
  int64_t k = 0;
  const float* b = nullptr;  // packed [k, panel width]
  int64_t panel_stride = 0;  // wide tiles: floats between neighbouring panels of b
  float* c = nullptr;
  int64_t ldc = 0;
  int n = 0;                // valid columns, at most the panel width
  bool accumulate = false;  // start from c instead of zero
  bool adds_last =
      false;  // with accumulate: c is added to the finished sum, so that long sums are sums of short ones
  bool finish = false;  // apply residual and clamp
  bool clamps_low = false, clamps_high = false;
  bool act_before_residual = false;
  const float* bias = nullptr;      // [n]; where sums start unless they accumulate
  const float* residual = nullptr;  // like c
  float lo = 0, hi = 0;
  const float* fetch = nullptr;  // weights to ask for from here on; null: those a few steps ahead of b
  int64_t fetch_step = 0;        // floats between what two steps ask for
};
using GemmTileFn = void (*)(const GemmTile&);

/// c[rows, n] = act(from) + residual, for the activations that are not clamps.
struct ActivateTile {
  float* c;
  int64_t ldc;
  int64_t rows;
  int64_t n;
  const float* residual;        // like c, added after the activation; or null
  const float* from = nullptr;  // rows `ld_from` floats apart; null: c
  int64_t ld_from = 0;
};

enum class DepthwiseType : uint8_t { f32, u8, s8 };

/// Output rows [begin, end) of a depthwise convolution of one image x[h, w, c] -> y[.., ow, c]. 8-bit inputs
/// give 8-bit outputs: clamp(round((dot + sums) * scale), lo, hi) + zero, the dot product exact in f32 while
/// under 2^24.
struct DepthwiseBand {
  DepthwiseType type;
  const void* x;
  int64_t h, w, c, ow;
  int64_t begin, end;
  int64_t channels;  // computed of the c, from the first on; 0: all
  int kh, kw, stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;
  const float* weights;   // [kh, kw, c], zero points taken away
  const float* bias;      // [c] or null; f32
  const float* residual;  // like y, or null; f32
  void* y;
  float lo, hi;
  bool act_before_residual;
  float pad;            // 8 bit: the input's zero point, which stands outside the image
  const int32_t* sums;  // 8 bit: [c] bias - zero point * sum of weights
  const float* scale;   // 8 bit: [c]
  int32_t zero;         // 8 bit: the output's zero point
};

/// One output row of a pooling window walk; `scale` null = maximum, else y = sum * scale[ow].
struct PoolRow {
  const float* in;  // the first input row of the window, [w, c]
  int64_t in_step;  // elements from one row of the window to the next
  int64_t taps_h;   // rows of the window inside the input
  int taps_w;       // columns of the window, inside or not
  int64_t w, c, ow;
  int stride_w, dilation_w, pad_left;
  const float* scale;  // [ow] or null
  float* y;
};

/// y[c] = scale * sum of x[lines, line, c].
struct GlobalAverage {
  const float* x;
  int64_t lines, line, c;
  float scale;
  float* y;
};

struct DenseKernels {
  Isa isa;
  int tile_rows;                            // largest tile height
  int width;                                // floats per vector
  int panel;                                // columns of a packed weight panel = 2 * width
  GemmTileFn gemm_packed[2][kMaxTileRows];  // [vectors - 1][rows - 1]
  GemmTileFn gemm_rows[2][kMaxTileRows];
  GemmTileFn gemm_line[2][2]
                      [kMaxTileRows];  // [stride - 1][vectors - 1][rows - 1], one row pointer per segment
  int wide_rows;                       // up to this many rows, gemm_wide does four whole panels at once
  GemmTileFn gemm_wide[3];             // [rows - 1], by row pointers
  /// Transposes: dst[i * dst_stride + r] = rows[r][i] for r < `width` row pointers, i < len. All pointers
  /// must be valid.
  void (*transpose)(const float* const* rows, int64_t len, float* dst, int64_t dst_stride);
  void (*activate)(const ActivateTile&, const Epilogue&);
  void (*depthwise_band)(const DepthwiseBand&);
  void (*pool_row)(const PoolRow&);
  void (*global_average)(const GlobalAverage&);
};

const DenseKernels& dense_kernels_portable();
const DenseKernels& dense_kernels_avx2();
const DenseKernels& dense_kernels_avx512();

/// The table for a level; levels this build lacks (other processors) fall back to portable.
const DenseKernels& dense_kernels(Isa isa);

}  // namespace trireme::cpu
