// Internal: one blocked driver for products and convolutions; they differ only in where a row of activations
// starts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/dense/gemm_f32.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// The virtual left operand [m, taps * run] of a product. Row m is `taps` runs of `run` contiguous elements:
/// one run for a matrix, one per kernel tap for a channels-last convolution (implicit im2col).
/// All strides are in bytes, so that one type serves float and int8.
struct RowSource {
  const char* base = nullptr;
  int64_t row_stride = 0;  // matrices: bytes between rows
  int64_t run = 0;         // contiguous elements per tap
  int64_t taps_h = 1, taps_w = 1;
  bool spatial = false;  // rows are output pixels (n, oh, ow) of an image x[n, h, w] of pixels
  int64_t h = 0, w = 0, oh = 0, ow = 0;
  int64_t pixel_stride = 0, line_stride = 0, image_stride = 0;  // bytes
  int stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1, pad_top = 0, pad_left = 0;
  bool padded = false;          // every tap lies inside the image: no check
  const char* zeros = nullptr;  // at least `run` elements of the padding value

  int64_t taps() const { return taps_h * taps_w; }
  int64_t depth() const { return taps() * run; }
};

/// How a product is cut: tiles of nearly equal height, blocks of tiles x panels as tasks, the depth in
/// chunks.
struct GemmPlan {
  int64_t tiles = 0, tile_rows = 0;  // tile_rows is the largest height
  int64_t tile_floor = 0, tall = 0;  // the first `tall` tiles have tile_floor + 1 rows, the others tile_floor
  int64_t block_tiles = 0, m_blocks = 0;
  int64_t panels = 0, block_panels = 0, n_blocks = 0;
  int64_t chunk = 0;           // depth per pass
  bool tiles_outside = false;  // walk tiles outside panels
  bool packed = false;         // transpose activations into the workspace first
  int64_t segments = 0;        // most runs that one chunk touches
  int lanes = 1;
  size_t lane_bytes = 0;

  int64_t tile_begin(int64_t tile) const { return tile * tile_floor + (tile < tall ? tile : tall); }
};

/// What a plan must respect.
struct PlanLimits {
  int64_t max_chunk = 512;
  int threads = 1;
};

GemmPlan plan_gemm(int64_t m, int64_t n, const RowSource& source, const DenseKernels& kernels,
                   PlanLimits limits);

/// One product: c[m, b.n] = epilogue(source * b), or one of several over parts of the depth that go into the
/// same c one after the other.
struct GemmJob {
  RowSource source;
  int64_t m = 0;
  PackedMatrix b;
  float* c = nullptr;
  int64_t ldc = 0;
  Epilogue epilogue;
  bool asked = false;           // the first weights were asked for by the product before
  const float* next = nullptr;  // what to ask for at the end: the weights of the product after this one
  int64_t first_k = 0;          // the row of b that the source begins with
  bool accumulates = false;     // sums go on from c
  bool finishes = true;         // residual and activation follow
};

/// Runs the job under `plan`; `workspace` holds plan.lanes * plan.lane_bytes.
void run_gemm(const GemmJob& job, const GemmPlan& plan, void* workspace, base::ThreadPool& pool);

/// The same on the calling thread only; `memory` is 64-byte aligned and holds plan.lane_bytes.
void run_gemm_alone(const GemmJob& job, const GemmPlan& plan, char* memory);

}  // namespace trireme::cpu
