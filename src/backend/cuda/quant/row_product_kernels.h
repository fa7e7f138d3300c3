// Kernel of products of few rows: a warp reads a pair of weight rows and sums over k for all rows of x.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "backend/cuda/quant/row_norm.h"
#include "backend/cuda/quant/row_products.h"
#include "backend/cuda/device/step.h"
#include "backend/cuda/quant/quantized_rows_kernels.h"
#include "tensor/element_math.h"

namespace trireme::cuda {

/// See RowProductArgs. Rows of all weights are one list, of which a warp takes two at a time (of a gated pair
/// the row of either weight): four accesses of 16 bytes a thread are under way before the first is used. x
/// comes from the first-level cache, or, normalised by every block for itself, from shared memory. Bytes:
/// those of the weights. A sum's order follows from k alone. kBits 0: weights of T.
template <class T, int kBits, int kRows, bool kNorm>
struct RowProducts {
  static constexpr int kThreads = 256, kMostThreads = kThreads;
  static constexpr int kEach = kBits == 0 ? kPack<T> : 16 * 8 / (kBits == 0 ? 8 : kBits);
  static constexpr int kPair = 2, kTurn = 2;
  RowProductArgs a;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const T* x = static_cast<const T*>(a.x);
    if constexpr (kNorm) x = normalised(lane);
    const int64_t warps = lane.threads() / kWarp;
    const int64_t first = lane.block() * warps + lane.thread() / kWarp;
    for (int64_t pair = first; pair < pairs(a); pair += lane.blocks() * warps) run(lane, x, pair);
  }

  /// What warps take.
  static TRIREME_HD int64_t pairs(const RowProductArgs& a) {
    if (a.gated) return a.weights[0].n;
    int64_t n = 0;
    for (int i = 0; i < a.count; ++i) n += a.weights[i].n;
    return (n + 1) / 2;
  }

 private:
  /// A row of one of the weights; `weight` is count where there is none.
  struct Target {
    int weight;
    int64_t row;
  };

  TRIREME_DEVICE Target target(int64_t pair, int which) const {
    if (a.gated) return {which, pair};
    int64_t row = 2 * pair + which;
    int weight = 0;
    while (weight < a.count && row >= a.weights[weight].n) row -= a.weights[weight++].n;
    return {weight, row};
  }

  /// Rows of x after their RMS norm, in shared memory.
  template <class Lane>
  TRIREME_DEVICE const T* normalised(const Lane& lane) const {
    T* rows = reinterpret_cast<T*>(lane.template shared<unsigned char>() + kReduceScratchBytes);
    normalise_rows(lane, a, rows, a.k);
    return rows;
  }

  struct Loaded {
    Pack<uint8_t> bytes;
    float scale = 1, zero = 0;
  };

  TRIREME_DEVICE Loaded load(Target t, int64_t at) const {
    const RowWeight& from = a.weights[t.weight];
    Loaded out;
    if constexpr (kBits == 0) {
      out.bytes = *reinterpret_cast<const Pack<uint8_t>*>(static_cast<const T*>(from.w) + t.row * a.k + at);
    } else {
      const WeightGroups groups{from.scale, from.zero, a.k, a.group};
      const int64_t group = groups.at(t.row, at);
      out.bytes = *reinterpret_cast<const Pack<uint8_t>*>(static_cast<const uint8_t*>(from.w) +
                                                          (t.row * a.k + at) * kBits / 8);
      out.scale = groups.scale[group];
      out.zero = groups.template zero_at<kBits>(group);
    }
    return out;
  }

  static TRIREME_DEVICE void unpack(const Loaded& from, float* out) {
    if constexpr (kBits == 0) {
      Pack<T> values;
      static_assert(sizeof(values) == sizeof(from.bytes));
      memcpy(static_cast<void*>(&values), &from.bytes, sizeof(values));
      for (int i = 0; i < kEach; ++i) out[i] = to_float(values.item[i]);
    } else {
      unpack_weights<kBits>(from.bytes, from.zero, out);
    }
  }

  static TRIREME_DEVICE float dot(const float* weight, const T* x) {
    float total = 0, v[kPack<T>];
    for (int i = 0; i < kEach; i += kPack<T>) {
      load_pack(x + i, kPack<T>, v);
      for (int j = 0; j < kPack<T>; ++j) total += v[j] * weight[i + j];
    }
    return total;
  }

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, const T* x, int64_t pair) const {
    const Target targets[kPair] = {target(pair, 0), target(pair, 1)};
    float sum[kPair][kRows] = {};
    const int64_t step = int64_t{kWarp} * kEach;
    for (int64_t at = int64_t{lane.thread() % kWarp} * kEach; at < a.k; at += kTurn * step) {
      Loaded loaded[kTurn][kPair];
      TRIREME_UNROLL
      for (int t = 0; t < kTurn; ++t) {
        TRIREME_UNROLL
        for (int o = 0; o < kPair; ++o) {
          if (at + t * step < a.k && targets[o].weight < a.count)
            loaded[t][o] = load(targets[o], at + t * step);
        }
      }
      TRIREME_UNROLL
      for (int t = 0; t < kTurn; ++t) {
        if (at + t * step >= a.k) continue;
        TRIREME_UNROLL
        for (int o = 0; o < kPair; ++o) {
          if (targets[o].weight >= a.count) continue;
          float weight[kEach];
          unpack(loaded[t][o], weight);
          TRIREME_UNROLL
          for (int b = 0; b < kRows; ++b) {
            if (b < a.rows) sum[o][b] += loaded[t][o].scale * dot(weight, x + b * a.k + at + t * step);
          }
        }
      }
    }
    TRIREME_UNROLL
    for (int b = 0; b < kRows; ++b) {
      if (b >= a.rows) continue;
      TRIREME_UNROLL
      for (int o = 0; o < kPair; ++o) {
        for (int mask = kWarp / 2; mask > 0; mask /= 2) sum[o][b] += lane.shuffle_xor(sum[o][b], mask);
      }
      if (lane.thread() % kWarp == 0) store(targets, b, sum[0][b], sum[1][b]);
    }
  }

  TRIREME_DEVICE float with_bias(Target t, float sum) const {
    const T* bias = static_cast<const T*>(a.weights[t.weight].bias);
    return bias == nullptr ? sum : sum + to_float(bias[t.row]);
  }

  TRIREME_DEVICE void store(const Target (&targets)[kPair], int b, float first, float second) const {
    if (a.gated) {
      const float gate = to_float(from_float<T>(activate(a.act, with_bias(targets[0], first))));
      const float up = to_float(from_float<T>(with_bias(targets[1], second)));
      static_cast<T*>(a.weights[0].y)[b * a.weights[0].n + targets[0].row] = from_float<T>(gate * up);
      return;
    }
    store_one(targets[0], b, first);
    store_one(targets[1], b, second);
  }
  TRIREME_DEVICE void store_one(Target t, int b, float sum) const {
    if (t.weight >= a.count) return;
    const RowWeight& of = a.weights[t.weight];
    const int64_t at = b * of.n + t.row;
    float z = with_bias(t, sum);
    const float more = a.residual == nullptr ? 0.0f : to_float(static_cast<const T*>(a.residual)[at]);
    z = a.act_before_residual ? activate(a.act, z) + more : activate(a.act, z + more);
    static_cast<T*>(of.y)[at] = from_float<T>(z);
  }
};

}  // namespace trireme::cuda
