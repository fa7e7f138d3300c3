// Kernels of region pooling: a thread a result.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/divide.h"
#include "backend/cuda/image/roi_axes.h"

namespace trireme::cuda {

/// 8 flop a sample; what regions share is read from the cache.
template <class T>
struct RoiAlign {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  RoiShape shape;
  const T *x, *regions;
  const int64_t* images;
  T* y;
  Divider out_w, out_h, channels;
  int64_t count;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < count; i += stride) {
      int64_t region = i;
      const int64_t column = out_w.step(region), row = out_h.step(region), c = channels.step(region);
      const T* box = regions + region * 4;
      const RoiAxis v(shape, to_float(box[1]), to_float(box[3]), shape.out_h);
      const RoiAxis h(shape, to_float(box[0]), to_float(box[2]), shape.out_w);
      const T* plane =
          x + (roi_image(shape, images[region]) * shape.channels + c) * shape.height * shape.width;
      y[i] = from_float<T>(cell(v, h, row, column, plane));
    }
  }

 private:
  TRIREME_DEVICE float cell(const RoiAxis& v, const RoiAxis& h, int64_t row, int64_t column,
                            const T* plane) const {
    const RoiAxis::Span down = v.inside(row, shape.height), across = h.inside(column, shape.width);
    float sum = 0, best = 0;
    // What is left out is 0.
    bool is_first = (down.last - down.first) * (across.last - across.first) == v.samples * h.samples;
    for (int64_t a = down.first; a < down.last; ++a) {
      const RoiLines rows(v.position(row, a), shape.height);
      for (int64_t b = across.first; b < across.last; ++b) {
        const RoiLines columns(h.position(column, b), shape.width);
        for (int k = 0; k < 4; ++k) {
          const float w = rows.weight[k / 2] * columns.weight[k % 2];
          const float term = w * to_float(plane[rows.at[k / 2] * shape.width + columns.at[k % 2]]);
          sum += term;
          best = is_first || term > best ? term : best;
          is_first = false;
        }
      }
    }
    const int64_t samples = v.samples * h.samples;
    return shape.maximum ? best : sum / static_cast<float>(samples > 0 ? samples : 1);
  }
};

/// The weights of rows and columns are apart: an element's share of a cell is their product.
template <class T>
struct RoiAlignGrad {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  RoiShape shape;
  const T* regions;
  const int64_t* images;
  const T* dy;
  T* dx;
  Divider width, height, channels;
  int64_t count;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < count; i += stride) {
      int64_t image = i;
      const int64_t column = width.step(image), row = height.step(image), c = channels.step(image);
      float sum = 0;
      for (int64_t r = 0; r < shape.regions; ++r) {
        if (roi_image(shape, images[r]) != image) continue;
        const T* box = regions + r * 4;
        const RoiAxis v(shape, to_float(box[1]), to_float(box[3]), shape.out_h);
        const RoiAxis h(shape, to_float(box[0]), to_float(box[2]), shape.out_w);
        const Cells rows(v, row, shape.height, shape.out_h), columns(h, column, shape.width, shape.out_w);
        const T* from = dy + (r * shape.channels + c) * shape.out_h * shape.out_w;
        float share = 0;
        for (int64_t a = rows.first; a < rows.last; ++a) {
          const float w = rows.weight(v, a, row, shape.height);
          for (int64_t b = columns.first; w != 0 && b < columns.last; ++b)
            share += w * columns.weight(h, b, column, shape.width) * to_float(from[a * shape.out_w + b]);
        }
        const int64_t samples = v.samples * h.samples;
        sum += share / static_cast<float>(samples > 0 ? samples : 1);
      }
      dx[i] = from_float<T>(sum);
    }
  }

 private:
  /// Cells whose samples may read a line: those that reach within a pixel of it.
  struct Cells {
    int64_t first = 0, last = 0;

    TRIREME_DEVICE Cells(const RoiAxis& axis, int64_t line, int64_t lines, int64_t cells) {
      last = cells;
      if (!(axis.cell > 0)) return;
      const double low = (double(line) - 1 - axis.start) / axis.cell - 1;
      const double high = (double(line) + 1 - axis.start) / axis.cell + 1;
      if (low > 0) first = low < double(cells) ? static_cast<int64_t>(low) : cells;
      // Positions behind the last line count as on it.
      if (line + 1 < lines && high < double(cells)) last = high > 0 ? static_cast<int64_t>(high) + 1 : 0;
      if (last > cells) last = cells;
      if (line == 0) first = 0;
    }
    /// Of all samples of cell i together.
    TRIREME_DEVICE float weight(const RoiAxis& axis, int64_t i, int64_t line, int64_t lines) const {
      float sum = 0;
      for (int64_t a = 0; a < axis.samples; ++a) sum += RoiLines(axis.position(i, a), lines).of(line);
      return sum;
    }
  };
};

/// Regions rounded to whole pixels, cells that overlap.
template <class T>
struct MaxRoiPool {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  RoiShape shape;
  const T *x, *regions;  // [regions, 5]
  T* y;
  Divider out_w, out_h, channels;
  int64_t count;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < count; i += stride) {
      int64_t region = i;
      const int64_t column = out_w.step(region), row = out_h.step(region), c = channels.step(region);
      const T* box = regions + region * 5;
      const int64_t image = roi_image(shape, static_cast<int64_t>(to_float(box[0])));
      const Span v(shape, to_float(box[2]), to_float(box[4]), row, {shape.out_h, shape.height});
      const Span h(shape, to_float(box[1]), to_float(box[3]), column, {shape.out_w, shape.width});
      const T* plane = x + (image * shape.channels + c) * shape.height * shape.width;
      float best = 0;
      bool is_first = true;
      for (int64_t a = v.first; a < v.last; ++a) {
        for (int64_t b = h.first; b < h.last; ++b) {
          const float value = to_float(plane[a * shape.width + b]);
          best = is_first || best < value ? value : best;
          is_first = false;
        }
      }
      y[i] = from_float<T>(best);
    }
  }

 private:
  struct Extent {
    int64_t cells, limit;
  };
  /// Pixels of cell i.
  struct Span {
    int64_t first, last;
    TRIREME_DEVICE Span(const RoiShape& s, float from, float to, int64_t i, Extent e) {
      const auto start = static_cast<int64_t>(std::round(double(from) * s.scale));
      const auto end = static_cast<int64_t>(std::round(double(to) * s.scale));
      const int64_t pixels = end - start + 1 > 1 ? end - start + 1 : 1;
      const double cell = double(pixels) / double(e.cells);
      first = clamped(static_cast<int64_t>(std::floor(double(i) * cell)) + start, e.limit);
      last = clamped(static_cast<int64_t>(std::ceil(double(i + 1) * cell)) + start, e.limit);
    }
    static TRIREME_DEVICE int64_t clamped(int64_t v, int64_t limit) {
      return v < 0 ? 0 : v > limit ? limit : v;
    }
  };
};

}  // namespace trireme::cuda
