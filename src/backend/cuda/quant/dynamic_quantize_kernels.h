// Quantization over the range that a tensor turns out to have.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/exact.h"
#include "backend/cuda/quant/qproduct.h"
#include "backend/cuda/reduce/rows.h"

namespace trireme::cuda {

/// Extremes, with 0, of each block's share: [blocks] lowest, then [blocks] highest. 4 bytes an element.
struct FindRange {
  const float* x;
  int64_t n;
  float* out;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    float low = 0, high = 0;
    const int64_t step = lane.blocks() * lane.threads() * 4;
    for (int64_t i = (lane.block() * lane.threads() + lane.thread()) * 4; i < n; i += step) {
      float v[4];
      load_pack(x + i, n - i, v);
      for (float e : v) {
        low = e < low ? e : low;
        high = e > high ? e : high;
      }
    }
    low = -block_reduce(lane, -low, scratch, Larger{});
    high = block_reduce(lane, high, scratch, Larger{});
    if (lane.thread() != 0) return;
    out[lane.block()] = low;
    out[lane.blocks() + lane.block()] = high;
  }
};

/// Every block makes scale and zero point from the extremes, the first writes them; then its share of y. 5
/// bytes an element.
struct QuantizeByRange {
  DynamicQuantize args;
  const float* range;  // [2, parts]
  int64_t parts;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    float low = 0, high = 0;
    for (int64_t i = lane.thread(); i < parts; i += lane.threads()) {
      low = range[i] < low ? range[i] : low;
      high = range[parts + i] > high ? range[parts + i] : high;
    }
    low = -block_reduce(lane, -low, scratch, Larger{});
    high = block_reduce(lane, high, scratch, Larger{});
    const float scale = high > low ? exact::divided(high - low, 255.0f) : 1.0f;
    const float offset = rintf(0.0f - exact::divided(low, scale));
    const float zero = offset > 0 ? (offset < 255.0f ? offset : 255.0f) : 0.0f;
    if (lane.block() == 0 && lane.thread() == 0) {
      *args.scale = scale;
      *args.zero = static_cast<uint8_t>(zero);
    }
    const int64_t step = lane.blocks() * lane.threads() * 4;
    for (int64_t i = (lane.block() * lane.threads() + lane.thread()) * 4; i < args.n; i += step) {
      float v[4];
      load_pack(args.x + i, args.n - i, v);
      for (int j = 0; j < 4; ++j) {
        const float q = rintf(exact::divided(v[j], scale)) + zero;
        if (i + j < args.n) args.y[i + j] = static_cast<uint8_t>(q > 0 ? (q < 255.0f ? q : 255.0f) : 0.0f);
      }
    }
  }
};

}  // namespace trireme::cuda
