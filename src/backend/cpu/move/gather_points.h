// Weighted sums of elements that each result names by index: bilinear and bicubic samples of a plane.
#pragma once

#include <cstdint>

namespace trireme::cpu {

struct GatherPoints {
  const float* x;
  float* y;  // [points]
  int64_t points = 0, taps = 0;
  int64_t stride = 0;    // between taps in index and weight
  const int32_t* index;  // [taps, points]; -1 adds nothing, whatever x holds
  const float* weight;   // [taps, points]
};

/// y[i] = sum over k of weight[k, i] * x[index[k, i]], in f32, taps in order.
void gather_points(const GatherPoints& args);

}  // namespace trireme::cpu
