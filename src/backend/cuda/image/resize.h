// Launchers of images on grids of other extents: weighted lines along up to three axes in one pass.
#pragma once

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// One axis: line i of the result is the sum of weight[k] times operand line from[k] for k in [first[i],
/// first[i + 1]), in that order; lines of `outside` get a constant. All in device memory; `first` null: the
/// axis is as it was, `outside` may be null.
struct ResizeAxisTerms {
  const int32_t *first = nullptr, *from = nullptr;
  const float* weight = nullptr;
  const uint8_t* outside = nullptr;
};

inline constexpr int kResizeAxes = 3;  ///< of one pass

/// x [outer, in0, between0, in1, between1, in2, between2] -> y with `out` in the place of `in`.
struct ResizeShape {
  int64_t outer = 1;
  int64_t in[kResizeAxes] = {1, 1, 1}, out[kResizeAxes] = {1, 1, 1}, between[kResizeAxes] = {1, 1, 1};
  int64_t results() const {
    int64_t n = outer;
    for (int d = 0; d < kResizeAxes; ++d) n *= out[d] * between[d];
    return n;
  }
};

struct ResizePass {
  ResizeShape shape;
  ResizeAxisTerms axes[kResizeAxes];
  double outside = 0;
  /// Passes between are in f32 (f64 of f64).
  bool from_wide = false, to_wide = false;
};
/// f32, f16, bf16, f64; u8, i8 and i32 are summed in f32, truncated and clamped.
void resize(On on, const ResizePass& pass, const void* x, void* y);
/// Elements of 1, 2, 4 or 8 bytes, and the bits of one outside.
struct ResizeUnit {
  int64_t bytes = 4;
  uint64_t outside = 0;
};
/// Lines moved as they are: every result has one term.
void resize_moves(tensor::Stream& stream, const ResizePass& pass, ResizeUnit unit, const void* x, void* y);

}  // namespace trireme::cuda
