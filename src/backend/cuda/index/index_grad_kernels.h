// Kernels of the gradient of lookups: places sorted by row, then a sum for each row in the order of its
// places.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/index/index_kernels.h"

namespace trireme::cuda {

/// keys[i] = row of index i and i itself, so that sorted keys have the places of each row in order; indices
/// that give nothing, and i >= count, sort last.
struct SortKeys {
  static constexpr bool kIndependent = true;
  Indices at;
  uint64_t* keys;
  int64_t count, padded, padding;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < padded; i += stride) {
      const int64_t row = i < count ? row_at_hand(at, i) : -1;
      keys[i] = row < 0 || row == padding ? ~uint64_t{0}
                                          : static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(i);
    }
  }
};

/// One pass of a bitonic sort: exchanges at `distance` inside sequences of `size`; distances below
/// kChunk / 2 run in one launch through shared memory.
struct BitonicPass {
  static constexpr int kThreads = 512;
  static constexpr int64_t kChunk = 2 * kThreads;
  static constexpr int64_t kSharedBytes = kChunk * static_cast<int64_t>(sizeof(uint64_t));
  uint64_t* keys;
  int64_t n, size, distance;
  int64_t first_size;  // > 0: sorts chunks from sequences of this size up to `size`, all distances

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    if (distance >= kChunk) {
      const int64_t stride = lane.blocks() * lane.threads();
      for (int64_t t = lane.block() * lane.threads() + lane.thread(); t < n / 2; t += stride)
        exchange(keys, t, 0, size, distance);
      return;
    }
    auto* chunk = lane.template shared<uint64_t>();
    for (int64_t base = lane.block() * kChunk; base < n; base += lane.blocks() * kChunk) {
      for (int64_t i = lane.thread(); i < kChunk; i += lane.threads()) chunk[i] = keys[base + i];
      lane.sync();
      for (int64_t s = first_size > 0 ? first_size : size; s <= size; s *= 2) {
        for (int64_t d = first_size > 0 ? s / 2 : distance; d > 0; d /= 2) {
          exchange(chunk, lane.thread(), base, s, d);
          lane.sync();
        }
      }
      for (int64_t i = lane.thread(); i < kChunk; i += lane.threads()) keys[base + i] = chunk[i];
      lane.sync();
    }
  }

 private:
  static TRIREME_DEVICE void exchange(uint64_t* at, int64_t t, int64_t base, int64_t s, int64_t d) {
    const int64_t i = t / d * 2 * d + t % d;
    const bool ascending = ((base + i) & s) == 0;
    const uint64_t a = at[i], b = at[i + d];
    if ((a > b) == ascending) at[i] = b, at[i + d] = a;
  }
};

/// A block for each run of equal rows and 128 columns: the run's slices join in order. Runs begin at every
/// place whose predecessor is of another row; other places have nothing to do.
template <class T>
struct SumRuns {
  static constexpr bool kIndependent = true;
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  static constexpr int kColumns = 128;
  const uint64_t* keys;
  const T* dy;
  T* dx;
  int64_t outer, count, slice, rows, across;  // across: pieces of kColumns of a slice

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t item = lane.block(); item < outer * count * across; item += lane.blocks()) {
      const int64_t column = item % across * kColumns + lane.thread();
      const int64_t start = item / across % count, o = item / across / count;
      const uint64_t row = keys[start] >> 32;
      if (row == 0xffffffffu || (start > 0 && keys[start - 1] >> 32 == row) || column >= slice) continue;
      T& to = dx[(o * rows + static_cast<int64_t>(row)) * slice + column];
      A total = static_cast<A>(to);
      const T* from = dy + o * count * slice + column;
      int64_t j = start;
      // Four loads under way; the sums keep their order.
      for (; j + 4 <= count && keys[j + 3] >> 32 == row; j += 4) {
        A v[4];
        for (int k = 0; k < 4; ++k)
          v[k] = static_cast<A>(from[static_cast<int64_t>(keys[j + k] & 0xffffffffu) * slice]);
        for (int k = 0; k < 4; ++k) total += v[k];
      }
      for (; j < count && keys[j] >> 32 == row; ++j)
        total += static_cast<A>(from[static_cast<int64_t>(keys[j] & 0xffffffffu) * slice]);
      to = static_cast<T>(total);
    }
  }
};

}  // namespace trireme::cuda
