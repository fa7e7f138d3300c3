// Launchers of samples at the points of a grid, and of the way back to image and grid.
#pragma once

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

enum class GridPadding : uint8_t { zeros, border, reflection };
enum class GridMode : uint8_t { nearest, linear, cubic };

/// Images x [batch, channels, in...] of one to three axes; `points` samples an image, whose coordinates
/// [batch, points, axes] lie in [-1, 1], the last axis first.
struct GridShape {
  int64_t batch = 0, channels = 0, points = 0;
  int axes = 2;
  int64_t in[3] = {1, 1, 1};
  GridPadding padding = GridPadding::zeros;
  GridMode mode = GridMode::linear;
  bool align_corners = false;

  int64_t in_points() const { return in[0] * in[1] * in[2]; }
  /// Elements of an image that a sample may read.
  int64_t taps() const {
    int64_t n = 1;
    for (int d = 0; d < axes; ++d) n *= mode == GridMode::nearest ? 1 : mode == GridMode::linear ? 2 : 4;
    return n;
  }
};

/// f32, f16 or bf16, image and grid alike. y [batch, channels, points].
void grid_sample(On on, const GridShape& shape, const void* x, const void* grid, void* y);
/// Operands and the result (of the image or of the grid) of the ways back; x is read by the grid's only.
struct GridGradArgs {
  const void *dy = nullptr, *x = nullptr, *grid = nullptr;
  void *to = nullptr, *workspace = nullptr;
};
void grid_sample_grad_grid(On on, const GridShape& shape, const GridGradArgs& args);
/// dx: taps sorted by the element they read, then a sum for each element in the order of its samples.
int64_t grid_sample_grad_x_workspace_bytes(const GridShape& shape);
void grid_sample_grad_x(On on, const GridShape& shape, const GridGradArgs& args);
/// Keys of the sort hold places in the batch and numbers of taps in 32 bits each.
bool fits_grid_sort(const GridShape& shape);

/// y [batch, points, axes] = theta [batch, axes, axes + 1] times the coordinates of a regular grid of `out`.
struct AffineGrid {
  int64_t batch = 0;
  int axes = 2;
  int64_t out[3] = {1, 1, 1};
  bool align_corners = false;
};
void affine_grid(On on, const AffineGrid& shape, const void* theta, void* y);

}  // namespace trireme::cuda
