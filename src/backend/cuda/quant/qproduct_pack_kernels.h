// Operands of 8-bit products made signed and padded.
#pragma once

#include <cstdint>

#include "backend/cuda/quant/qproduct.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

// What qproduct.h says, for the device.
TRIREME_DEVICE int64_t padded_extent(int64_t n) { return (n + kQuantPad - 1) / kQuantPad * kQuantPad; }
TRIREME_DEVICE int64_t rows_of(const QuantWindow& w) { return w.batch * w.out_h * w.out_w; }
TRIREME_DEVICE int64_t depth_of(const QuantWindow& w) { return w.kernel_h * w.kernel_w * w.channels; }

/// u8 less 128, so that all operands are signed.
TRIREME_DEVICE int8_t signed_byte(uint8_t v, bool is_signed) {
  return static_cast<int8_t>(is_signed ? v : v ^ 0x80);
}
/// A zero point in the same terms.
TRIREME_DEVICE int32_t signed_zero(const void* zero, int64_t at, bool is_signed) {
  return zero == nullptr ? (is_signed ? 0 : -128)
                         : signed_byte(static_cast<const uint8_t*>(zero)[at], is_signed);
}

/// A warp a row, 16 bytes a lane and step; where the channels are a multiple of 16 and x is aligned they come
/// in one access. Bytes: k read, padded k written, for each row.
struct PackRows {
  PackRowsArgs args;
  bool by_packs;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const QuantWindow& w = args.window;
    const int64_t k = depth_of(w), padded = padded_extent(k), rows = rows_of(w);
    const int warps = lane.threads() / kWarp, in_warp = lane.thread() % kWarp;
    for (int64_t row = lane.block() * warps + lane.thread() / kWarp; row < rows;
         row += lane.blocks() * warps) {
      const int64_t ow = row % w.out_w, oh = row / w.out_w % w.out_h, batch = row / w.out_w / w.out_h;
      int32_t sum = 0;
      for (int64_t at = int64_t{in_warp} * kQuantPad; at < padded; at += kWarp * kQuantPad) {
        Pack<uint8_t> out;
        if (by_packs) {
          const uint8_t* from = place(batch, oh, ow, at);
          if (from != nullptr) out = *reinterpret_cast<const Pack<uint8_t>*>(from);
          for (uint8_t& v : out.item)
            v = static_cast<uint8_t>(from == nullptr ? args.outside : signed_byte(v, args.is_signed));
        } else {
          for (int i = 0; i < kQuantPad; ++i) {
            const uint8_t* from = at + i < k ? place(batch, oh, ow, at + i) : nullptr;
            const int8_t v = at + i >= k       ? int8_t{0}
                             : from == nullptr ? args.outside
                                               : signed_byte(*from, args.is_signed);
            out.item[i] = static_cast<uint8_t>(v);
          }
        }
        for (uint8_t v : out.item) sum += static_cast<int8_t>(v);
        *reinterpret_cast<Pack<uint8_t>*>(args.to + row * padded + at) = out;
      }
      if (args.sums == nullptr) continue;
      for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
      if (in_warp == 0) args.sums[row] = sum;
    }
  }

 private:
  /// Element `at` of a point's window, or null outside of x.
  TRIREME_DEVICE const uint8_t* place(int64_t batch, int64_t oh, int64_t ow, int64_t at) const {
    const QuantWindow& w = args.window;
    const int64_t channel = at % w.channels, tap = at / w.channels;
    const int64_t ih = oh * w.stride_h - w.pad_h + tap / w.kernel_w * w.dilation_h;
    const int64_t iw = ow * w.stride_w - w.pad_w + tap % w.kernel_w * w.dilation_w;
    if (ih < 0 || ih >= w.in_h || iw < 0 || iw >= w.in_w) return nullptr;
    return static_cast<const uint8_t*>(args.x) + ((batch * w.in_h + ih) * w.in_w + iw) * w.channels + channel;
  }
};

/// A warp a column of b; of a plain b neighbouring warps read neighbouring bytes.
struct PackColumns {
  PackColumnsArgs args;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t padded = padded_extent(args.k), columns = padded_extent(args.n);
    const int warps = lane.threads() / kWarp, in_warp = lane.thread() % kWarp;
    for (int64_t c = lane.block() * warps + lane.thread() / kWarp; c < columns; c += lane.blocks() * warps) {
      int32_t sum = 0;
      for (int64_t at = in_warp; at < padded; at += kWarp) {
        int8_t v = 0;
        if (c < args.n && at < args.k) {
          const int64_t from = args.transposed ? c * args.k + at : at * args.n + c;
          v = signed_byte(static_cast<const uint8_t*>(args.b)[from], args.is_signed);
        }
        sum += v;
        args.to[c * padded + at] = v;
      }
      for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
      if (in_warp == 0) args.sums[c] = sum;
    }
  }
};

}  // namespace trireme::cuda
