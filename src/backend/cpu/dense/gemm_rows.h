// Internal: where the rows of a virtual left operand start, tap by tap, for one register tile.
#pragma once

#include <cstdint>

#include "backend/cpu/dense/gemm_driver.h"

namespace trireme::cpu {

/// The rows of one tile: their first input pixel, found once, so that each tap costs additions only.
class TileRows {
 public:
  TileRows(const RowSource& source, int64_t first, int rows) : source_(source), rows_(rows) {
    if (!source.spatial) {
      for (int r = 0; r < rows; ++r) start_[r] = source.base + (first + r) * source.row_stride;
      return;
    }
    const uint64_t line = static_cast<uint64_t>(first) / static_cast<uint64_t>(source.ow);
    int64_t ow = first - static_cast<int64_t>(line) * source.ow;
    int64_t image = static_cast<int64_t>(line / static_cast<uint64_t>(source.oh));
    int64_t oh = static_cast<int64_t>(line) - image * source.oh;
    for (int r = 0; r < rows; ++r) {
      ih_[r] = static_cast<int32_t>(oh * source.stride_h - source.pad_top);
      iw_[r] = static_cast<int32_t>(ow * source.stride_w - source.pad_left);
      start_[r] = source.base + image * source.image_stride + ih_[r] * source.line_stride +
                  iw_[r] * source.pixel_stride;
      if (++ow == source.ow) {
        ow = 0;
        if (++oh == source.oh) {
          oh = 0;
          ++image;
        }
      }
    }
  }

  /// out[r] = start of tap `tap` of row r plus `offset` bytes; slots past the last row repeat the first.
  template <class T>
  void tap(int64_t tap, int64_t offset, const T** out) const {
    const RowSource& s = source_;
    if (!s.spatial) {
      for (int r = 0; r < rows_; ++r) out[r] = reinterpret_cast<const T*>(start_[r] + offset);
    } else {
      const int32_t dh = static_cast<int32_t>(tap / s.taps_w) * s.dilation_h;
      const int32_t dw = static_cast<int32_t>(tap % s.taps_w) * s.dilation_w;
      const int64_t move = dh * s.line_stride + dw * s.pixel_stride;
      if (s.padded) {
        for (int r = 0; r < kRowSlots; ++r) {
          out[r] = reinterpret_cast<const T*>(start_[r < rows_ ? r : 0] + move + offset);
        }
        return;
      }
      for (int r = 0; r < rows_; ++r) {
        // One unsigned compare per axis covers both ends.
        const bool inside = static_cast<uint32_t>(ih_[r] + dh) < static_cast<uint32_t>(s.h) &&
                            static_cast<uint32_t>(iw_[r] + dw) < static_cast<uint32_t>(s.w);
        out[r] = reinterpret_cast<const T*>((inside ? start_[r] + move : s.zeros) + offset);
      }
    }
    for (int r = rows_; r < kRowSlots; ++r) out[r] = out[0];
  }

 private:
  const RowSource& source_;
  int rows_;
  const char* start_[kRowSlots];
  int32_t ih_[kRowSlots], iw_[kRowSlots];
};

}  // namespace trireme::cpu
