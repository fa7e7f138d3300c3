// Matrix-vector products of decoding with weights of 8 or 4 bits: bound by the bytes of the weights.
#pragma once

#include <cstdint>

#include "backend/cuda/scalar.h"

namespace trireme::cuda {

/// y[b, row] = sum_k x[b, k] w[row, k] for up to kMost vectors at once. w is stored in groups of `group`
/// inputs with one scale each: w = scale[row, k / group] (q - zero), zero 0 for 8 bits and 8 for 4 bits (two
/// values a byte, the low half first). A warp owns a row and reads 16 bytes of weights a thread and step; x
/// comes from the first-level cache. Bytes: rows k bits / 8 + rows k / group 4. k is a multiple of 16 x 8 /
/// bits and of group; a group is a multiple of a thread's 16 bytes.
template <class T, int kBits>
struct QuantizedRows {
  static constexpr int kMost = 8;           // vectors
  static constexpr int kMostThreads = 256;  // registers for 32 weights and 8 sums
  static constexpr int kEach = 16 * 8 / kBits;
  const T* x;        // [batch, k]
  const uint8_t* w;  // [rows, k bits / 8]
  const float* scale;
  T* y;  // [batch, rows]
  int64_t rows, k, group;
  int batch;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int warps = lane.threads() / kWarp, in_warp = lane.thread() % kWarp;
    for (int64_t row = lane.block() * warps + lane.thread() / kWarp; row < rows;
         row += lane.blocks() * warps) {
      float sum[kMost] = {};
      for (int64_t at = static_cast<int64_t>(in_warp) * kEach; at < k; at += kWarp * kEach) {
        const Pack<uint8_t> q = *reinterpret_cast<const Pack<uint8_t>*>(w + (row * k + at) * kBits / 8);
        float value[kEach];
        unpack(q, value);
        const float s = scale[row * (k / group) + at / group];
        for (int b = 0; b < kMost; ++b) {
          if (b < batch) sum[b] += s * dot(value, x + b * k + at);
        }
      }
      for (int b = 0; b < kMost; ++b) {
        if (b >= batch) continue;
        for (int mask = kWarp / 2; mask > 0; mask /= 2) sum[b] += lane.shuffle_xor(sum[b], mask);
        if (in_warp == 0) y[b * rows + row] = from_float<T>(sum[b]);
      }
    }
  }

 private:
  static TRIREME_DEVICE void unpack(const Pack<uint8_t>& q, float* out) {
    for (int i = 0; i < 16; ++i) {
      if constexpr (kBits == 8) {
        out[i] = static_cast<float>(static_cast<int8_t>(q.item[i]));
      } else {
        out[2 * i] = static_cast<float>((q.item[i] & 15) - 8);
        out[2 * i + 1] = static_cast<float>((q.item[i] >> 4) - 8);
      }
    }
  }
  static TRIREME_DEVICE float dot(const float* value, const T* in) {
    float total = 0;
    for (int i = 0; i < kEach; i += kPack<T>) {
      float v[kPack<T>];
      load_pack(in + i, kPack<T>, v);
      for (int j = 0; j < kPack<T>; ++j) total += v[j] * value[i + j];
    }
    return total;
  }
};

}  // namespace trireme::cuda
