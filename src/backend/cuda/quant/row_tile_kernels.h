// Kernel of products of few rows by 16-bit weights on the tensor cores: bound by the bytes of the weights.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/device/overlap.h"
#include "backend/cuda/quant/row_norm.h"
#include "backend/cuda/quant/weight_ring.h"
#include "tensor/element_math.h"

namespace trireme::cuda {

/// See RowProductArgs; weights of T, at most kMostProductRows rows of x. A block takes 16 rows of a weight
/// (of a gated pair: of both), its warps share k: warp w takes every fourth run of 128 elements from the w-th
/// on. A thread reads 16 bytes, eight neighbours along k, of two weight rows at a time, kDepth of them ahead
/// of their use; the same eight of a row of x make the other operand, for a sum over k may meet its terms in
/// any order as long as both operands keep it. Rows of x that do not exist are zeros, so the price of one row
/// is that of eight. They are read as far ahead as the weights. Of a norm in bf16, the product is of x and
/// the norm's scale, rounded, and the length of a row, whose squares the threads add up beside it, divides
/// the sums; f16 has no room for such factors, so its blocks normalise x first. A sum's order follows from k
/// alone. Bytes: those of the weights.
template <class T, bool kGated, bool kNorm>
struct RowTiles {
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kMostThreads = kThreads;
  static constexpr int kTile = 16, kColumns = 8;
  static constexpr int kSets = kGated ? 2 : 1, kDepth = kGated ? 4 : 8;
  /// Whether sums are divided by the lengths of rows, else whether rows are normalised first.
  static constexpr bool kLate = kNorm && std::is_same_v<T, BFloat16>, kEarly = kNorm && !kLate;
  static constexpr int kBlocksAtOnce = kEarly ? 2 : 3;  // with more, registers would be spilled
  using Ring = WeightRing<T, kSets, kDepth, kWarps>;
  /// Behind each normalised row, so that eight rows of x lie in different banks.
  static constexpr int kPadding = Ring::kStep;
  static constexpr int64_t kPartialFloats = int64_t{kWarps} * kSets * kTile * kColumns;
  static_assert(sizeof(T) == 2 && kColumns == kMostProductRows);
  RowProductArgs a;

  static TRIREME_HD int64_t tiles(const RowProductArgs& a) {
    int64_t n = 0;
    for (int i = 0; i < (kGated ? 1 : a.count); ++i) n += (a.weights[i].n + kTile - 1) / kTile;
    return n;
  }
  static TRIREME_HD int64_t shared_bytes(const RowProductArgs& a) {
    const int64_t x = kEarly ? a.rows * (a.k + kPadding) * static_cast<int64_t>(sizeof(T)) : 0;
    return kReduceScratchBytes + kPartialFloats * static_cast<int64_t>(sizeof(float)) + x;
  }

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    let_next_begin(lane);
    const Place at = place_of(lane.block());
    Ring weights(lane.thread(), a.k);
    TRIREME_UNROLL
    for (int s = 0; s < kSets; ++s) weights.set_weight(s, weight(at.first + s), at.row);
    weights.fill();
    wait_for_earlier(lane);
    Rows x{static_cast<const T*>(a.x), a.k, lane.thread() % kWarp / 4, {}};
    if constexpr (kEarly) x.first = normalised(lane), x.stride = a.k + kPadding;
    TRIREME_UNROLL
    for (int d = 0; d < kDepth; ++d) x.words[d] = words_of(x, weights.offset(d));
    float sum[kSets][4] = {}, squares = 0;
    const int steps = weights.steps();
    for (int step = 0; step < steps; step += kDepth) {
      TRIREME_UNROLL
      for (int d = 0; d < kDepth; ++d) {
        if constexpr (kLate) scale_words(x, weights.offset(step + d), d, squares);
        weights.multiply(lane, d, x.words[d], sum);
        weights.read(d, step + d + kDepth);
        x.words[d] = words_of(x, weights.offset(step + d + kDepth));
      }
    }
    finish(lane, at, sum, squares);
  }

 private:
  /// 16 rows of the weight `first`, or of both of a gated pair.
  struct Place {
    int first;
    int64_t row;
  };
  TRIREME_DEVICE Place place_of(int64_t tile) const {
    int first = 0;
    int64_t tiles_before = 0;
    TRIREME_UNROLL
    for (int i = 0; i + 1 < kMostRowProducts; ++i) {
      const int64_t end = tiles_before + (a.weights[i].n + kTile - 1) / kTile;
      if (kGated || first != i || i + 1 >= a.count || tile < end) continue;
      first = i + 1;
      tiles_before = end;
    }
    return {first, (tile - tiles_before) * kTile};
  }
  TRIREME_DEVICE const RowWeight& weight(int number) const {
    return number == 0 ? a.weights[0] : number == 1 ? a.weights[1] : a.weights[2];
  }

  /// The row of x that the thread holds of a product, and what is under way of it.
  struct Rows {
    const T* first;  // of all rows
    int64_t stride;
    int row;
    Words words[kDepth];
  };
  /// Eight elements of the thread's row, zeros where there is none.
  TRIREME_DEVICE Words words_of(const Rows& x, int at) const {
    return x.row < a.rows && at < a.k ? *reinterpret_cast<const Words*>(x.first + x.row * x.stride + at)
                                      : Words{};
  }
  /// The elements at `slot`, each times the norm's scale; adds up their squares.
  TRIREME_DEVICE void scale_words(Rows& x, int at, int slot, float& squares) const {
    if (x.row >= a.rows || at >= a.k) return;
    T item[kPack<T>];
    float v[kPack<T>], scale[kPack<T>];
    load_norm_scale<T>(a, at, scale);
    __builtin_memcpy(static_cast<void*>(item), &x.words[slot], sizeof item);
    for (int j = 0; j < kPack<T>; ++j) v[j] = to_float(item[j]);
    for (int j = 0; j < kPack<T>; ++j) squares += v[j] * v[j];
    for (int j = 0; j < kPack<T> / 2; ++j)
      x.words[slot].word[j] = pack_two<T>(v[2 * j] * scale[2 * j], v[2 * j + 1] * scale[2 * j + 1]);
  }

  template <class Lane>
  TRIREME_DEVICE float* partials(const Lane& lane) const {
    return reinterpret_cast<float*>(lane.template shared<unsigned char>() + kReduceScratchBytes);
  }

  /// Rows of x after their RMS norm, kPadding elements apart, in shared memory.
  template <class Lane>
  TRIREME_DEVICE const T* normalised(const Lane& lane) const {
    T* rows = reinterpret_cast<T*>(partials(lane) + kPartialFloats);
    normalise_rows(lane, a, rows, a.k + kPadding);
    return rows;
  }

  /// Adds up the warps' sums in their order, and stores what a thread takes of the results.
  template <class Lane>
  TRIREME_DEVICE void finish(const Lane& lane, Place at, const float (&sum)[kSets][4], float squares) const {
    float* partial = partials(lane);
    const int thread = lane.thread() % kWarp, warp = lane.thread() / kWarp;
    TRIREME_UNROLL
    for (int s = 0; s < kSets; ++s) {
      TRIREME_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = thread / 4 + i / 2 * 8, column = thread % 4 * 2 + i % 2;
        partial[((warp * kSets + s) * kColumns + column) * kTile + row] = sum[s][i];
      }
    }
    float* lengths = lane.template shared<float>();  // [kWarps, kColumns]
    if constexpr (kLate) {
      for (int mask = 1; mask < 4; mask *= 2) squares += lane.shuffle_xor(squares, mask);
      if (thread % 4 == 0) lengths[warp * kColumns + thread / 4] = squares;
    }
    lane.sync();
    for (int i = lane.thread(); i < kTile * a.rows; i += kThreads) {
      const int64_t row = at.row + i % kTile;
      if (row >= weight(at.first).n) continue;
      float total[kSets] = {};
      for (int w = 0; w < kWarps; ++w) {
        TRIREME_UNROLL
        for (int s = 0; s < kSets; ++s) total[s] += partial[(w * kSets + s) * kTile * kColumns + i];
      }
      if constexpr (kLate) {
        float length = 0;
        for (int w = 0; w < kWarps; ++w) length += lengths[w * kColumns + i / kTile];
        const float inverse = 1.0f / sqrtf(length / static_cast<float>(a.k) + a.epsilon);
        for (float& z : total) z *= inverse;
      }
      store(at.first, row, i / kTile, total);
    }
  }

  TRIREME_DEVICE static float with_bias(const RowWeight& of, int64_t row, float sum) {
    return of.bias == nullptr ? sum : sum + to_float(static_cast<const T*>(of.bias)[row]);
  }
  TRIREME_DEVICE void store(int first, int64_t row, int b, const float (&total)[kSets]) const {
    const RowWeight& of = weight(first);
    const int64_t at = b * of.n + row;
    float z = with_bias(of, row, total[0]);
    if constexpr (kGated) {
      const float gate = to_float(from_float<T>(activate(a.act, z)));
      const float up = to_float(from_float<T>(with_bias(a.weights[1], row, total[1])));
      static_cast<T*>(of.y)[at] = from_float<T>(gate * up);
    } else {
      const float more = a.residual == nullptr ? 0.0f : to_float(static_cast<const T*>(a.residual)[at]);
      z = a.act_before_residual ? activate(a.act, z) + more : activate(a.act, z + more);
      static_cast<T*>(of.y)[at] = from_float<T>(z);
    }
  }
};

}  // namespace trireme::cuda
