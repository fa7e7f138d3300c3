// Matrix-vector products of decoding with weights of 8 or 4 bits: bound by the bytes of the weights.
#pragma once

#include <cstdint>

#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// 16 bytes of weights as numbers, less `zero`: bytes, or of 4 bits a block of 32, byte i with weights i (low
/// half) and i + 16.
template <int kBits>
TRIREME_DEVICE void unpack_weights(const Pack<uint8_t>& q, float zero, float* out) {
  for (int i = 0; i < 16; ++i) {
    if constexpr (kBits == 8) {
      out[i] = static_cast<float>(static_cast<int8_t>(q.item[i])) - zero;
    } else {
      out[i] = static_cast<float>(q.item[i] & 15) - zero;
      out[i + 16] = static_cast<float>(q.item[i] >> 4) - zero;
    }
  }
}

/// Scales and zero points of stored weights [rows, k / group].
struct WeightGroups {
  const float* scale;
  const int8_t* zero;  // or null: 0 of 8 bits, 8 of 4
  int64_t k, group;
  TRIREME_DEVICE int64_t at(int64_t row, int64_t i) const { return row * (k / group) + i / group; }
  template <int kBits>
  TRIREME_DEVICE float zero_at(int64_t group_at) const {
    return zero != nullptr ? static_cast<float>(zero[group_at]) : kBits == 8 ? 0.0f : 8.0f;
  }
};

/// y[b, row] = sum_k x[b, k] w[row, k] + bias[row] for up to kMost vectors at once, w = scale[row, k / group]
/// (q - zero). A warp owns a row and reads 16 bytes of weights a thread and step; x comes from the
/// first-level cache. Bytes: rows k bits / 8 + rows k / group 4. k is a multiple of 16 x 8 / bits and of
/// group; a group is a multiple of a thread's 16 bytes.
template <class T, int kBits, int kMost>
struct QuantizedRows {
  static constexpr int kMostThreads = 256;  // registers for 32 weights and the sums
  static constexpr int kEach = 16 * 8 / kBits;
  const T* x;        // [batch, k]
  const uint8_t* w;  // [rows, k bits / 8]
  WeightGroups groups;
  const T* bias;  // or null
  T* y;           // [batch, rows]
  int64_t rows, k;
  int batch;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int warps = lane.threads() / kWarp, in_warp = lane.thread() % kWarp;
    for (int64_t row = lane.block() * warps + lane.thread() / kWarp; row < rows;
         row += lane.blocks() * warps) {
      float sum[kMost] = {};
      for (int64_t at = static_cast<int64_t>(in_warp) * kEach; at < k; at += kWarp * kEach) {
        const Pack<uint8_t> q = *reinterpret_cast<const Pack<uint8_t>*>(w + (row * k + at) * kBits / 8);
        const int64_t group = groups.at(row, at);
        float value[kEach];
        unpack_weights<kBits>(q, groups.template zero_at<kBits>(group), value);
        const float s = groups.scale[group];
        for (int b = 0; b < kMost; ++b) {
          if (b < batch) sum[b] += s * dot(value, x + b * k + at);
        }
      }
      for (int b = 0; b < kMost; ++b) {
        if (b >= batch) continue;
        for (int mask = kWarp / 2; mask > 0; mask /= 2) sum[b] += lane.shuffle_xor(sum[b], mask);
        const float more = bias == nullptr ? 0.0f : to_float(bias[row]);
        if (in_warp == 0) y[b * rows + row] = from_float<T>(sum[b] + more);
      }
    }
  }

 private:
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

/// to [rows, k] = the weights as numbers of T: 16 bytes read, 16 x 8 / bits numbers written a thread and
/// step. The scale and zero point are those of row first + row.
template <class T, int kBits>
struct DequantizeRows {
  static constexpr bool kIndependent = true;
  static constexpr int kEach = 16 * 8 / kBits;
  const uint8_t* w;  // of row `first`
  WeightGroups groups;
  T* to;
  int64_t rows, k, first;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t step = lane.blocks() * lane.threads(), packs = k / kEach;
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < rows * packs; i += step) {
      const int64_t row = i / packs, at = i % packs * kEach, group = groups.at(first + row, at);
      const Pack<uint8_t> q = *reinterpret_cast<const Pack<uint8_t>*>(w + i * 16);
      float value[kEach];
      unpack_weights<kBits>(q, groups.template zero_at<kBits>(group), value);
      const float s = groups.scale[group];
      for (float& v : value) v *= s;
      for (int j = 0; j < kEach; j += kPack<T>) store_pack(value + j, kPack<T>, to + row * k + at + j);
    }
  }
};

}  // namespace trireme::cuda
