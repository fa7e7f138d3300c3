// Kernels of selection by sorting: a key an element that sorts by row, order and place, then the first of
// each row.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cuda/device/scalar.h"
#include "backend/cuda/index/select.h"

namespace trireme::cuda {

/// A number whose order is that of x, NaN last; zeros are equal.
template <class T>
TRIREME_DEVICE uint32_t order_of(T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<uint32_t>(x) ^ 0x80000000u;
  } else {
    const float v = to_float(x);
    uint32_t bits = 0;
    if (v != 0) memcpy(&bits, &v, sizeof bits);
    if (v != v) return 0xffffffffu;
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  }
}

/// keys[i]: row, order, place in the row from the highest bits down; behind the last element all ones.
template <class T>
struct RankKeys {
  static constexpr bool kIndependent = true;
  TopKArgs a;
  uint64_t* keys;
  int64_t count, padded;
  int place_bits;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < padded; i += stride) {
      keys[i] = ~uint64_t{0};
      if (i >= count) continue;
      const int64_t row = i / a.n, place = i % a.n;
      const uint32_t order = order_of(static_cast<const T*>(a.x)[element(a, row, place)]);
      keys[i] = (static_cast<uint64_t>(row) << 32 | (a.is_largest ? ~order : order)) << place_bits |
                static_cast<uint64_t>(place);
    }
  }
  static TRIREME_DEVICE int64_t element(const TopKArgs& a, int64_t row, int64_t place) {
    return (row / a.inner * a.n + place) * a.inner + row % a.inner;
  }
};

/// Row r's elements stand at [r n, (r + 1) n) of the sorted keys.
template <class T>
struct TakeRanks {
  static constexpr bool kIndependent = true;
  TopKArgs a;
  const uint64_t* keys;
  int64_t count;  // results
  int place_bits;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < count; i += stride) {
      const int64_t row = i / a.k, rank = i % a.k;
      const auto place = static_cast<int64_t>(keys[row * a.n + rank] & ((uint64_t{1} << place_bits) - 1));
      const int64_t to = (row / a.inner * a.k + rank) * a.inner + row % a.inner;
      static_cast<T*>(a.y)[to] = static_cast<const T*>(a.x)[RankKeys<T>::element(a, row, place)];
      if (a.places != nullptr) a.places[to] = place;
    }
  }
};

}  // namespace trireme::cuda
