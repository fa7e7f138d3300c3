// Kernel of im2col with channels last: a thread copies neighbouring channels of one tap.
#pragma once

#include <cstdint>

#include "backend/cuda/device/divide.h"
#include "backend/cuda/device/scalar.h"
#include "backend/cuda/device/step.h"

namespace trireme::cuda {

/// See image_rows(). kUnit neighbouring channels are one access; more than one asks for channels last.
template <int kUnit>
struct ImageRows {
  static constexpr bool kIndependent = true;
  struct Axis {
    Divider kernel, out;
    int64_t in, stride, dilation, pad, step;  ///< step: elements between neighbours of x along the axis
  };
  Axis axes[3];  ///< the last one first
  Divider units, channel_units;
  int64_t first, count;  ///< rows
  int64_t batch_step, channel_step;
  const float* x;
  float* rows;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t all = count * units.divisor(), stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < all; i += stride) {
      int64_t row = i, tap = units.step(row);
      const int64_t channel = channel_units.step(tap) * kUnit;
      row += first;
      int64_t offset = channel * channel_step;
      bool is_inside = true;
      for (const Axis& a : axes) {
        const int64_t at = a.out.step(row) * a.stride + a.kernel.step(tap) * a.dilation - a.pad;
        is_inside = is_inside && at >= 0 && at < a.in;
        offset += at * a.step;
      }
      offset += row * batch_step;
      const Step<float, kUnit> none{};
      reinterpret_cast<Step<float, kUnit>*>(rows)[i] =
          is_inside ? *reinterpret_cast<const Step<float, kUnit>*>(x + offset) : none;
    }
  }
};

}  // namespace trireme::cuda
