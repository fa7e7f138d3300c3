// What follows exact sums of 8-bit products, depthwise convolutions and sums of two tensors.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/exact.h"
#include "backend/cuda/quant/qproduct_pack_kernels.h"

namespace trireme::cuda {

/// 8 bytes an element.
struct FinishIntegers {
  static constexpr bool kIndependent = true;
  IntegerFinish args;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t step = lane.blocks() * lane.threads(), padded = padded_extent(args.n);
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < args.rows * args.n; i += step) {
      const int64_t row = i / args.n, c = i % args.n;
      const int32_t za = signed_zero(args.a_zero, args.a_per_row ? row % args.a_rows : 0, args.a_signed);
      const int32_t zb = signed_zero(args.b_zero, args.b_per_column ? c : 0, args.b_signed);
      args.y[i] = args.acc[row * padded + c] - za * args.column_sums[c] - zb * args.row_sums[row] +
                  static_cast<int32_t>(args.k) * za * zb;
    }
  }
};

/// The result of one sum: real, or in quantized steps.
TRIREME_DEVICE float finished(const QuantFinish& f, int32_t sum, int64_t c) {
  const float v = exact::times(static_cast<float>(sum), f.factor[c]);
  if (f.type == tensor::DType::f32) return activate(f.act, v);
  const bool is_plain = f.act.kind == Activation::none;
  const float q = rintf(is_plain ? v : exact::divided(activate(f.act, v), f.y_scale)) + f.zero;
  if (q != q) return f.zero;  // scales may be any numbers
  return q > f.low ? (q < f.high ? q : f.high) : f.low;
}
/// Four neighbours, or fewer.
TRIREME_DEVICE void store_finished(const QuantFinish& f, int64_t at, int64_t count, const float (&v)[4]) {
  if (f.type == tensor::DType::f32) {
    float* to = static_cast<float*>(f.y) + at;
    if (count == 4 && at % 4 == 0) return store_pack(v, 4, to);
    for (int i = 0; i < 4; ++i) {
      if (i < count) to[i] = v[i];
    }
    return;
  }
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= (static_cast<uint32_t>(static_cast<int32_t>(v[i])) & 0xffu) << (8 * i);
  auto* to = static_cast<uint8_t*>(f.y) + at;
  if (count == 4 && at % 4 == 0) {
    *reinterpret_cast<uint32_t*>(to) = word;
  } else {
    for (int i = 0; i < 4; ++i) {
      if (i < count) to[i] = static_cast<uint8_t>(word >> (8 * i));
    }
  }
}

/// Four channels a thread: 4 bytes read, 1 (f32: 4) written an element.
struct FinishQuantized {
  static constexpr bool kIndependent = true;
  QuantFinish args;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t step = lane.blocks() * lane.threads(), quads = (args.n + 3) / 4;
    const int64_t padded = padded_extent(args.n);
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < args.rows * quads; i += step) {
      const int64_t row = i / quads, c = i % quads * 4, count = args.n - c < 4 ? args.n - c : 4;
      const Pack<int32_t> acc = *reinterpret_cast<const Pack<int32_t>*>(args.acc + row * padded + c);
      float v[4];
      for (int j = 0; j < 4; ++j) {
        const int64_t channel = j < count ? c + j : c;
        int32_t sum = acc.item[j] + args.offset[channel];
        if (args.w_zero != nullptr) sum -= args.w_zero[channel] * args.row_sums[row];
        v[j] = finished(args, sum, channel);
      }
      store_finished(args, row * args.n + c, count, v);
    }
  }
};

/// Four channels of a point a thread. Each element of x is read kernel / stride times from the cache.
struct QuantDepthwiseStep {
  static constexpr bool kIndependent = true;
  QuantDepthwise args;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const QuantWindow& w = args.window;
    const int64_t step = lane.blocks() * lane.threads(), quads = (w.channels + 3) / 4;
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < rows_of(w) * quads; i += step) {
      const int64_t row = i / quads, c = i % quads * 4, count = w.channels - c < 4 ? w.channels - c : 4;
      int32_t sum[4] = {}, all[4] = {};
      add_taps(row, c, count, sum, all);
      float v[4];
      for (int j = 0; j < 4; ++j) {
        const int64_t channel = j < count ? c + j : c;
        int32_t total = sum[j] + args.finish.offset[channel];
        if (args.finish.w_zero != nullptr) total -= args.finish.w_zero[channel] * all[j];
        v[j] = finished(args.finish, total, channel);
      }
      store_finished(args.finish, row * w.channels + c, count, v);
    }
  }

 private:
  /// Sums of x w and of x, over the window.
  TRIREME_DEVICE void add_taps(int64_t row, int64_t c, int64_t count, int32_t (&sum)[4],
                               int32_t (&all)[4]) const {
    const QuantWindow& w = args.window;
    const int64_t ow = row % w.out_w, oh = row / w.out_w % w.out_h, batch = row / w.out_w / w.out_h;
    for (int64_t kh = 0; kh < w.kernel_h; ++kh) {
      const int64_t ih = oh * w.stride_h - w.pad_h + kh * w.dilation_h;
      for (int64_t kw = 0; kw < w.kernel_w; ++kw) {
        const int64_t iw = ow * w.stride_w - w.pad_w + kw * w.dilation_w;
        const bool is_inside = ih >= 0 && ih < w.in_h && iw >= 0 && iw < w.in_w;
        const int64_t at = ((batch * w.in_h + ih) * w.in_w + iw) * w.channels + c;
        const int8_t* tap = args.w + (kh * w.kernel_w + kw) * w.channels + c;
        for (int j = 0; j < 4; ++j) {
          if (j >= count) continue;
          const int32_t x = is_inside
                                ? signed_byte(static_cast<const uint8_t*>(args.x)[at + j], args.is_signed)
                                : args.outside;
          sum[j] += x * tap[j];
          all[j] += x;
        }
      }
    }
  }
};

/// 3 bytes an element.
struct QuantAddStep {
  static constexpr bool kIndependent = true;
  QuantAdd args;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t step = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < args.n; i += step) {
      const float a = value(args.a, i, args.a_signed), b = value(args.b, i, args.b_signed);
      const float v =
          exact::plus(exact::plus(exact::times(a, args.fa), exact::times(b, args.fb)), args.shift);
      const float q = rintf(v > args.low ? (v < args.high ? v : args.high) : args.low);
      static_cast<uint8_t*>(args.y)[i] = static_cast<uint8_t>(static_cast<int32_t>(q) & 0xff);
    }
  }

 private:
  static TRIREME_DEVICE float value(const void* at, int64_t i, bool is_signed) {
    return is_signed ? static_cast<float>(static_cast<const int8_t*>(at)[i])
                     : static_cast<float>(static_cast<const uint8_t*>(at)[i]);
  }
};

}  // namespace trireme::cuda
