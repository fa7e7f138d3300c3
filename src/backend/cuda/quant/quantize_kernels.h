// Quantization element by element, four together where the layout lets them.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/quant/quantize.h"
#include "backend/cuda/device/exact.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

TRIREME_DEVICE int64_t scale_index(const ScaleLayout& l, int64_t at) {
  if (l.is_single) return 0;
  const int64_t index = at / l.inner % l.n;
  if (l.block == 0) return index;
  return (at / (l.inner * l.n) * l.blocks + index / l.block) * l.inner + at % l.inner;
}

/// Bytes: 4 + sizeof(Q) an element.
template <class Q>
struct Quantize {
  const float* from;
  Q* to;
  const float* scale;
  const Q* zero;
  ScaleLayout layout;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads() * 4;
    constexpr float kLow = static_cast<Q>(-1) < Q(0) ? -128.0f : 0.0f, kHigh = kLow + 255.0f;
    for (int64_t at = (lane.block() * lane.threads() + lane.thread()) * 4; at < layout.elements;
         at += stride) {
      float v[4];
      load_pack(from + at, layout.elements - at, v);
      for (int i = 0; i < 4 && at + i < layout.elements; ++i) {
        const int64_t s = scale_index(layout, at + i);
        const float offset = zero == nullptr ? 0.0f : static_cast<float>(zero[s]);
        const float q = rintf(exact::divided(v[i], scale[s])) + offset;
        to[at + i] = static_cast<Q>(q != q ? offset : q > kLow ? (q < kHigh ? q : kHigh) : kLow);
      }
    }
  }
};

template <class Q>
struct Dequantize {
  const Q* from;
  float* to;
  const float* scale;
  const Q* zero;
  ScaleLayout layout;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads() * 4;
    for (int64_t at = (lane.block() * lane.threads() + lane.thread()) * 4; at < layout.elements;
         at += stride) {
      float v[4] = {};
      for (int i = 0; i < 4 && at + i < layout.elements; ++i) {
        const int64_t s = scale_index(layout, at + i);
        // The difference of 32-bit integers needs more.
        const int64_t offset = zero == nullptr ? 0 : static_cast<int64_t>(zero[s]);
        v[i] = exact::times(static_cast<float>(static_cast<int64_t>(from[at + i]) - offset), scale[s]);
      }
      store_pack(v, layout.elements - at, to + at);
    }
  }
};

}  // namespace trireme::cuda
