// How pooling kernels walk windows: places in memory, taps inside the image, the first maximum.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/device/divide.h"
#include "backend/cuda/image/pool.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// A pooling with its steps in memory.
struct PoolWalk {
  PoolShape shape;
  int32_t x_step[3], y_step[3];  // of the spatial axes
  int64_t x_image, y_image;      // elements of one image
  int64_t x_channel, y_channel;  // steps from channel to channel
  Divider channels, spatial[3];  // of what is walked: results, or operands backwards
  int64_t count;                 // threads' items

  /// Item i as image, channel (in units of kWide) and place; the order is that of memory.
  struct Place {
    int64_t image, channel;
    int32_t at[3];
  };
  TRIREME_DEVICE Place place(int64_t i) const {
    Place p{};
    if (shape.channels_last) p.channel = channels.step(i);
    for (int d = 2; d >= 0; --d) p.at[d] = static_cast<int32_t>(spatial[d].step(i));
    if (!shape.channels_last) p.channel = channels.step(i);
    p.image = i;
    return p;
  }
};

/// Taps of a window that lie inside the image: [first, last).
struct PoolTaps {
  int32_t first, last;
};
TRIREME_DEVICE PoolTaps taps_inside(const PoolAxis& a, int32_t o) {
  const int32_t start = o * a.stride - a.pad_begin;
  const int32_t first = start >= 0 ? 0 : (a.dilation - 1 - start) / a.dilation;
  const int32_t room = start >= a.in ? 0 : (a.in - start + a.dilation - 1) / a.dilation;
  const int32_t last = room < a.kernel ? room : a.kernel;
  return {first < last ? first : last, last};
}
/// Taps inside the padded image; a window of ceil_mode may reach beyond it.
TRIREME_DEVICE int32_t padded_taps(const PoolAxis& a, int32_t o) {
  const int32_t start = o * a.stride - a.pad_begin, end = a.in + a.pad_end;
  const int32_t room = (end - start + a.dilation - 1) / a.dilation;
  return room < a.kernel ? room : a.kernel;
}

template <class T>
using PoolTotal = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T, int kWide>
struct alignas(kWide * sizeof(T)) PoolItems {
  T item[kWide];
};

/// Calls visit(place in the image) for the points of a window.
template <class F>
TRIREME_DEVICE void for_window(const PoolWalk& w, const int32_t (&o)[3], F visit) {
  int32_t taps[3], step[3], first = 0;
  for (int d = 0; d < 3; ++d) {
    const PoolAxis& a = w.shape.axes[d];
    const PoolTaps inside = taps_inside(a, o[d]);
    taps[d] = inside.last - inside.first;
    step[d] = a.dilation * w.x_step[d];
    first += (o[d] * a.stride - a.pad_begin + inside.first * a.dilation) * w.x_step[d];
  }
  for (int32_t k0 = 0; k0 < taps[0]; ++k0, first += step[0]) {
    int32_t line = first;
    for (int32_t k1 = 0; k1 < taps[1]; ++k1, line += step[1]) {
      int32_t at = line;
      for (int32_t k2 = 0; k2 < taps[2]; ++k2, at += step[2]) visit(at);
    }
  }
}

/// What an average divides by.
TRIREME_DEVICE int32_t points_of(const PoolShape& s, const int32_t (&o)[3]) {
  int32_t n = 1;
  for (int d = 0; d < 3; ++d) {
    const PoolTaps t = taps_inside(s.axes[d], o[d]);
    n *= s.count_padding ? padded_taps(s.axes[d], o[d]) : t.last - t.first;
  }
  return n;
}

/// The first maximum of each channel's window, the last NaN.
template <class T, int kWide>
struct PoolBest {
  using A = PoolTotal<T>;
  A value[kWide];
  int32_t at[kWide];

  TRIREME_DEVICE PoolBest(const PoolWalk& w, const int32_t (&o)[3], const T* x) {
    for (int j = 0; j < kWide; ++j) value[j] = -INFINITY, at[j] = -1;
    for_window(w, o, [&](int32_t offset) {
      const auto v = *reinterpret_cast<const PoolItems<T, kWide>*>(x + offset);
      for (int j = 0; j < kWide; ++j) {
        const A c = static_cast<A>(v.item[j]);
        if (at[j] < 0 || c > value[j] || c != c) value[j] = c, at[j] = offset;
      }
    });
  }
};

}  // namespace trireme::cuda
