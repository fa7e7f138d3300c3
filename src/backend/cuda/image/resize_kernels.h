// Kernels of resizing: a thread a few neighbouring results, all axes of a pass at once.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/device/divide.h"
#include "backend/cuda/image/resize.h"
#include "backend/cuda/device/scalar.h"
#include "tensor/element_math.h"

namespace trireme::cuda {

/// Neighbouring elements of one access.
template <class T, int kWide>
struct alignas(sizeof(T) * kWide) ResizeItems {
  T item[kWide];
};

/// Steps through x and the digits of a place in y. Items are kWide results: of the last extent, or (across)
/// lines of the last axis whose lines are single elements.
struct ResizeWalk {
  ResizeAxisTerms axes[kResizeAxes];
  Divider out[kResizeAxes], between[kResizeAxes];
  int64_t axis_step[kResizeAxes], between_step[kResizeAxes];
  int64_t image;  // elements of x for one of the outer places
  int64_t count;  // items

  struct Place {
    int64_t base, line[kResizeAxes];
  };
  TRIREME_DEVICE Place place(int64_t i, int wide_lines, int wide_elements) const {
    Place p;
    p.base = 0;
    for (int d = kResizeAxes - 1; d >= 0; --d) {
      const bool is_last = d == kResizeAxes - 1;
      p.base += between[d].step(i) * between_step[d] * (is_last ? wide_elements : 1);
      p.line[d] = out[d].step(i) * (is_last ? wide_lines : 1);
    }
    p.base += i * image;
    return p;
  }
  /// Terms [first, last) of a line; of an axis as it was the line itself.
  TRIREME_DEVICE int32_t first(int d, int64_t line) const {
    return axes[d].first == nullptr ? static_cast<int32_t>(line) : axes[d].first[line];
  }
  TRIREME_DEVICE int32_t last(int d, int64_t line) const {
    return axes[d].first == nullptr ? static_cast<int32_t>(line) + 1 : axes[d].first[line + 1];
  }
  TRIREME_DEVICE int64_t offset(int d, int32_t term) const {
    return (axes[d].first == nullptr ? term : axes[d].from[term]) * axis_step[d];
  }
  TRIREME_DEVICE float weight(int d, int32_t term) const {
    return axes[d].first == nullptr ? 1.0f : axes[d].weight[term];
  }
  TRIREME_DEVICE bool is_outside(int d, int64_t line) const {
    return axes[d].outside != nullptr && axes[d].outside[line] != 0;
  }
  TRIREME_DEVICE bool is_outside(const Place& p, int along) const {
    return is_outside(0, p.line[0]) || is_outside(1, p.line[1]) || is_outside(2, p.line[2] + along);
  }
};

/// sizeof(X) elements of x + sizeof(Y) elements of y bytes while the lines that neighbours share stay in the
/// cache; 2 flop a term.
template <class X, class Y, int kWide, bool kAcross>
struct ResizeLines {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  using A = std::conditional_t<std::is_same_v<X, double>, double, float>;
  const X* x;
  Y* y;
  ResizeWalk walk;
  A outside;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < walk.count; i += stride) {
      const ResizeWalk::Place p = walk.place(i, kAcross ? kWide : 1, kAcross ? 1 : kWide);
      A sum[kWide] = {};
      for (int32_t a = walk.first(0, p.line[0]); a < walk.last(0, p.line[0]); ++a) {
        const int64_t at = p.base + walk.offset(0, a);
        for (int32_t b = walk.first(1, p.line[1]); b < walk.last(1, p.line[1]); ++b)
          add_line(p, at + walk.offset(1, b), A(walk.weight(0, a)) * A(walk.weight(1, b)), sum);
      }
      ResizeItems<Y, kWide> items;
      for (int j = 0; j < kWide; ++j) {
        const A v = walk.is_outside(p, kAcross ? j : 0) ? outside : sum[j];
        if constexpr (std::is_integral_v<Y>) {
          items.item[j] = tensor::math::converted<Y>(v);
        } else {
          items.item[j] = static_cast<Y>(v);
        }
      }
      *reinterpret_cast<ResizeItems<Y, kWide>*>(y + i * kWide) = items;
    }
  }

 private:
  /// The terms of the last axis.
  TRIREME_DEVICE void add_line(const ResizeWalk::Place& p, int64_t at, A w, A (&sum)[kWide]) const {
    if constexpr (kAcross) {
      for (int j = 0; j < kWide; ++j) {
        const int64_t line = p.line[2] + j;
        for (int32_t c = walk.first(2, line); c < walk.last(2, line); ++c)
          sum[j] += w * A(walk.weight(2, c)) * static_cast<A>(x[at + walk.offset(2, c)]);
      }
    } else {
      for (int32_t c = walk.first(2, p.line[2]); c < walk.last(2, p.line[2]); ++c) {
        const A own = w * A(walk.weight(2, c));
        const auto v = *reinterpret_cast<const ResizeItems<X, kWide>*>(x + at + walk.offset(2, c));
        for (int j = 0; j < kWide; ++j) sum[j] += own * static_cast<A>(v.item[j]);
      }
    }
  }
};

/// The nearest line's elements, bit for bit. Bytes as above.
template <class T, int kWide>
struct ResizeMoves {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  const T* x;
  T* y;
  ResizeWalk walk;
  T outside;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < walk.count; i += stride) {
      const ResizeWalk::Place p = walk.place(i, kWide, 1);
      const int64_t at =
          p.base + walk.offset(0, walk.first(0, p.line[0])) + walk.offset(1, walk.first(1, p.line[1]));
      ResizeItems<T, kWide> items;
      for (int j = 0; j < kWide; ++j) {
        items.item[j] = x[at + walk.offset(2, walk.first(2, p.line[2] + j))];
        if (walk.is_outside(p, j)) items.item[j] = outside;
      }
      *reinterpret_cast<ResizeItems<T, kWide>*>(y + i * kWide) = items;
    }
  }
};

}  // namespace trireme::cuda
