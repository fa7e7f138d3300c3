// Kernels of window pooling: one result (or, backwards, one operand) element of kWide channels a thread.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/image/pool_walk.h"

namespace trireme::cuda {

/// sizeof(T) (elements of x + elements of y) bytes while windows overlap in the cache.
template <class T, int kWide>
struct Pool {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  using A = PoolTotal<T>;
  const T* x;
  T* y;
  int64_t* indices;
  PoolWalk walk;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < walk.count; i += stride) {
      const PoolWalk::Place p = walk.place(i);
      const T* from = x + p.image * walk.x_image + p.channel * kWide * walk.x_channel;
      A out[kWide];
      if (walk.shape.kind == PoolKind::max) {
        const PoolBest<T, kWide> best(walk, p.at, from);
        for (int j = 0; j < kWide; ++j) out[j] = best.value[j];
        if (indices != nullptr) indices[i] = stored_index(p, best.at[0]);
      } else {
        sum(p.at, from, out);
      }
      PoolItems<T, kWide> items;
      for (int j = 0; j < kWide; ++j) items.item[j] = static_cast<T>(out[j]);
      *reinterpret_cast<PoolItems<T, kWide>*>(y + i * kWide) = items;
    }
  }

 private:
  TRIREME_DEVICE void sum(const int32_t (&o)[3], const T* from, A (&out)[kWide]) const {
    for (A& v : out) v = 0;
    const bool is_lp = walk.shape.kind == PoolKind::lp;
    const bool squares = walk.shape.p == 2, is_plain = walk.shape.p == 1;
    for_window(walk, o, [&](int32_t offset) {
      const auto v = *reinterpret_cast<const PoolItems<T, kWide>*>(from + offset);
      for (int j = 0; j < kWide; ++j) {
        const A c = static_cast<A>(v.item[j]);
        const A size = c < 0 ? -c : c;
        out[j] += !is_lp     ? c
                  : squares  ? c * c
                  : is_plain ? size
                             : std::pow(size, static_cast<A>(walk.shape.p));
      }
    });
    const int32_t points = is_lp ? 1 : points_of(walk.shape, o);
    for (A& v : out) {
      if (is_lp && squares) v = std::sqrt(v);
      if (is_lp && !squares && !is_plain) v = std::pow(v, A(1) / static_cast<A>(walk.shape.p));
      if (!is_lp) v = points == 0 ? A(0) : v / static_cast<A>(points);
    }
  }
  /// The index of the maximum as ONNX counts it: over all planes, by rows or by columns.
  TRIREME_DEVICE int64_t stored_index(const PoolWalk::Place& p, int32_t offset) const {
    if (offset < 0) offset = 0;
    const PoolAxis* a = walk.shape.axes;
    const int64_t plane = (p.image * walk.shape.channels + p.channel) * walk.x_channel;
    if (!walk.shape.column_major) return plane + offset;
    const int32_t w = offset % a[2].in, h = offset / a[2].in % a[1].in, d = offset / (a[2].in * a[1].in);
    return plane + (w * a[1].in + h) * a[0].in + d;
  }
};

/// Where each window's maximum lies in its image: the first one, -1 where the window gives nothing.
template <class T, int kWide>
struct PoolPlaces {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  const T* x;
  int32_t* places;  // like y
  PoolWalk walk;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < walk.count; i += stride) {
      const PoolWalk::Place p = walk.place(i);
      const PoolBest<T, kWide> best(walk, p.at,
                                    x + p.image * walk.x_image + p.channel * kWide * walk.x_channel);
      for (int j = 0; j < kWide; ++j) {
        const bool gives = !walk.shape.rectified || best.value[j] > PoolTotal<T>(0);
        places[i * kWide + j] = gives ? best.at[j] : -1;
      }
    }
  }
};

/// dx of one place from the windows it lies in, in their order: no atomics.
template <class T, int kWide, bool kMax>
struct PoolGrad {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  using A = PoolTotal<T>;
  const T* dy;
  const int32_t* places;  // of maxima, like dy
  T* dx;
  PoolWalk walk;  // items are places of x

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < walk.count; i += stride) {
      const PoolWalk::Place p = walk.place(i);
      A total[kWide];
      for (A& v : total) v = 0;
      Windows range[3];
      for (int d = 0; d < 3; ++d) range[d] = windows_of(walk.shape.axes[d], p.at[d]);
      int32_t o[3];
      for (o[0] = range[0].first; o[0] < range[0].last; ++o[0]) {
        for (o[1] = range[1].first; o[1] < range[1].last; ++o[1]) {
          for (o[2] = range[2].first; o[2] < range[2].last; ++o[2]) add(p, o, total);
        }
      }
      PoolItems<T, kWide> items;
      for (int j = 0; j < kWide; ++j) items.item[j] = static_cast<T>(total[j]);
      *reinterpret_cast<PoolItems<T, kWide>*>(dx + i * kWide) = items;
    }
  }

 private:
  struct Windows {
    int32_t first, last;
  };
  /// Results whose window spans index i (of dilated windows some skip it).
  static TRIREME_DEVICE Windows windows_of(const PoolAxis& a, int32_t i) {
    const int32_t at = i + a.pad_begin, least = at - (a.kernel - 1) * a.dilation;
    const int32_t first = least <= 0 ? 0 : (least + a.stride - 1) / a.stride, end = at / a.stride + 1;
    return {first, end < a.out ? end : a.out};
  }
  TRIREME_DEVICE bool reads(const PoolWalk::Place& p, const int32_t (&o)[3]) const {
    for (int d = 0; d < 3; ++d) {
      const PoolAxis& a = walk.shape.axes[d];
      if (a.dilation > 1 && (p.at[d] + a.pad_begin - o[d] * a.stride) % a.dilation != 0) return false;
    }
    return true;
  }
  TRIREME_DEVICE void add(const PoolWalk::Place& p, const int32_t (&o)[3], A (&total)[kWide]) const {
    if (!reads(p, o)) return;
    const int64_t channel = p.channel * kWide;
    const int64_t at = p.image * walk.y_image + channel * walk.y_channel + o[0] * walk.y_step[0] +
                       o[1] * walk.y_step[1] + o[2] * walk.y_step[2];
    const auto d = *reinterpret_cast<const PoolItems<T, kWide>*>(dy + at);
    if constexpr (kMax) {
      const int32_t own = p.at[0] * walk.x_step[0] + p.at[1] * walk.x_step[1] + p.at[2] * walk.x_step[2];
      for (int j = 0; j < kWide; ++j) {
        if (places[at + j] == own) total[j] += static_cast<A>(d.item[j]);
      }
    } else {
      const int32_t points = walk.shape.is_sum ? 1 : points_of(walk.shape, o);
      for (int j = 0; j < kWide; ++j)
        total[j] += static_cast<A>(d.item[j]) / static_cast<A>(points > 0 ? points : 1);
    }
  }
};

}  // namespace trireme::cuda
