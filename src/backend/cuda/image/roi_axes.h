// Where the samples of a region lie along an axis, and which lines they read.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/image/roi.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// One axis of a region: cells from `start` on, and the samples of a cell. In f64, so that all devices count
/// the same samples.
struct RoiAxis {
  double start, cell;
  int64_t samples;

  TRIREME_DEVICE RoiAxis(const RoiShape& s, float from, float to, int64_t cells) {
    const double shift = s.half_pixel ? 0.5 : 0.0;
    start = double(from) * s.scale - shift;
    double extent = double(to) * s.scale - shift - start;
    if (!s.half_pixel && extent < 1) extent = 1;
    cell = extent / double(cells);
    const double most = std::ceil(cell);
    samples = s.sampling > 0 ? s.sampling
                             : static_cast<int64_t>(most > 4096 ? 4096.0
                                                    : most > 0  ? most
                                                                : 0.0);
  }
  TRIREME_DEVICE double position(int64_t i, int64_t a) const {
    return start + double(i) * cell + (double(a) + 0.5) * cell / double(samples);
  }
  /// Samples [first, last) of cell i among which are all that lie on `lines`; a region far larger than the
  /// image has nearly all of its own outside, where they are 0.
  struct Span {
    int64_t first, last;
  };
  TRIREME_DEVICE Span inside(int64_t i, int64_t lines) const {
    const double step = cell / double(samples), origin = start + double(i) * cell, most = double(samples);
    if (!(step > 0)) return {0, samples};
    // One more on each side: the rounding of the samples' own positions decides.
    const double low = std::ceil((-1.0 - origin) / step - 0.5) - 1;
    const double high = std::floor((double(lines) - origin) / step - 0.5) + 2;
    const int64_t first = low > 0 ? static_cast<int64_t>(low < most ? low : most) : 0;
    return {first, high > double(first) ? static_cast<int64_t>(high < most ? high : most) : first};
  }
};

/// The two lines that a position between them reads; no weight outside by more than a pixel.
struct RoiLines {
  int64_t at[2] = {0, 0};
  float weight[2] = {0, 0};

  TRIREME_DEVICE RoiLines(double v, int64_t n) {
    if (v < -1.0 || v > double(n)) return;
    v = v > 0 ? v : 0;
    auto low = static_cast<int64_t>(v);
    if (low >= n - 1) v = double(low = n - 1);
    at[0] = low;
    at[1] = low + 1 < n ? low + 1 : n - 1;
    weight[1] = static_cast<float>(v - double(low));
    weight[0] = 1 - weight[1];
  }
  TRIREME_DEVICE float of(int64_t line) const {
    return (at[0] == line ? weight[0] : 0) + (at[1] == line ? weight[1] : 0);
  }
};

TRIREME_DEVICE int64_t roi_image(const RoiShape& s, int64_t given) {
  return given < 0 ? 0 : given >= s.batch ? s.batch - 1 : given;
}

}  // namespace trireme::cuda
