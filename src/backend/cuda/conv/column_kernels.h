// Kernels of images as columns of blocks: a thread an element.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/conv/columns.h"
#include "backend/cuda/device/divide.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// The axes of a ColumnShape, the last one first.
struct ColumnWalk {
  struct Axis {
    Divider image, block, positions, stride;
    int64_t dilation, pad;
  };
  Axis axes[kColumnRank];
  int rank;
  int64_t image_count, block_count, position_count, count;
};

/// 2 sizeof(T) bytes an element of the columns at most: neighbours read the same elements.
template <class T>
struct ColumnsOfImage {
  static constexpr bool kIndependent = true;
  ColumnWalk walk;
  const T* image;
  T* columns;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < walk.count; i += stride) {
      int64_t position = i % walk.position_count, row = i / walk.position_count;
      int64_t element = row % walk.block_count, offset = 0, step = 1;
      bool is_inside = true;
      for (int d = 0; d < walk.rank; ++d) {
        const ColumnWalk::Axis& a = walk.axes[d];
        const int64_t at =
            a.positions.step(position) * a.stride.divisor() + a.block.step(element) * a.dilation - a.pad;
        is_inside = is_inside && at >= 0 && at < a.image.divisor();
        offset += at * step;
        step *= a.image.divisor();
      }
      columns[i] = is_inside ? image[row / walk.block_count * walk.image_count + offset] : T(0);
    }
  }
};

/// Each element of the image gathers the blocks that hold it.
template <class T>
struct ImageOfColumns {
  static constexpr bool kIndependent = true;
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  ColumnWalk walk;
  const T* columns;
  T* image;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < walk.count; i += stride) {
      const int64_t plane = i / walk.image_count;
      A sum = 0;
      for (int64_t b = 0; b < walk.block_count; ++b) {
        const int64_t position = position_of(i % walk.image_count, b);
        if (position >= 0)
          sum += static_cast<A>(columns[(plane * walk.block_count + b) * walk.position_count + position]);
      }
      image[i] = static_cast<T>(sum);
    }
  }

 private:
  /// The position at which element b of a block lies on the image's element, or -1.
  TRIREME_DEVICE int64_t position_of(int64_t place, int64_t b) const {
    int64_t position = 0, step = 1;
    for (int d = 0; d < walk.rank; ++d) {
      const ColumnWalk::Axis& a = walk.axes[d];
      int64_t from = a.image.step(place) + a.pad - a.block.step(b) * a.dilation;
      if (from < 0 || a.stride.step(from) != 0 || from >= a.positions.divisor()) return -1;
      position += from * step;
      step *= a.positions.divisor();
    }
    return position;
  }
};

}  // namespace trireme::cuda
