// Tensors [outer, channels, inner] by elements and planes. inner == 1 is channels last.
#pragma once

#include <cstdint>

#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

struct ChannelExtents {
  int64_t outer = 0, channels = 0, inner = 1;
};

/// f(value index of the pack, channel) for the elements of a pack that begins at `at`.
template <class F>
TRIREME_DEVICE void for_channels(const ChannelExtents& e, int64_t at, int count, F f) {
  int64_t within = at % e.inner, channel = at / e.inner % e.channels;
  for (int i = 0; i < count; ++i) {
    f(i, channel);
    if (++within < e.inner) continue;
    within = 0;
    channel = channel + 1 < e.channels ? channel + 1 : 0;
  }
}

/// f(value, element) of a warp's share of a plane of `inner` elements that begins at `first`.
template <class T, class Lane, class F>
TRIREME_DEVICE void for_plane(const Lane& lane, const T* x, int64_t first, int64_t inner, F f) {
  const int in_warp = lane.thread() % kWarp;
  if (inner % kPack<T> != 0) {
    for (int64_t i = in_warp; i < inner; i += kWarp) f(to_float(x[first + i]), first + i);
    return;
  }
  for (int64_t i = in_warp * kPack<T>; i < inner; i += kWarp * kPack<T>) {
    float v[kPack<T>];
    load_pack(x + first + i, kPack<T>, v);
    for (int j = 0; j < kPack<T>; ++j) f(v[j], first + i + j);
  }
}

template <class Lane>
TRIREME_DEVICE float warp_sum(const Lane& lane, float value) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value += lane.shuffle_xor(value, mask);
  return value;
}

}  // namespace trireme::cuda
