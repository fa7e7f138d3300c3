// Kernel of top_k.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cuda/device/scalar.h"
#include "backend/cuda/index/select.h"

namespace trireme::cuda {

/// A block for each of x's lanes. Values become numbers whose order is that of the selection, the place in
/// their low half, so that all differ. Each thread knows the first of its own that is not taken; the block
/// takes the first of these k times, and only its owner looks on. n + k n / kThreads reads.
template <class T>
struct TopK {
  static constexpr int kThreads = 256;
  static constexpr uint64_t kNone = ~uint64_t{0};
  const T* x;
  T* y;
  int64_t* places;
  int64_t outer, n, inner, k;
  bool is_largest;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    uint64_t* scratch = lane.template shared<uint64_t>();
    const auto least = [](uint64_t a, uint64_t b) { return a < b ? a : b; };
    for (int64_t row = lane.block(); row < outer * inner; row += lane.blocks()) {
      const T* from = x + row / inner * n * inner + row % inner;
      uint64_t own = first_of(from, lane.thread(), false, 0);
      for (int64_t r = 0; r < k; ++r) {
        const uint64_t taken = block_reduce(lane, own, scratch, least);
        if (taken == own) own = first_of(from, lane.thread(), true, taken);
        if (lane.thread() != 0) continue;
        const int64_t place = static_cast<int64_t>(taken & 0xffffffffu);
        const int64_t to = (row / inner * k + r) * inner + row % inner;
        y[to] = from[place * inner];
        if (places != nullptr) places[to] = place;
      }
    }
  }

 private:
  /// The first number of a thread's elements, of those after `taken` where `goes_on`.
  TRIREME_DEVICE uint64_t first_of(const T* from, int thread, bool goes_on, uint64_t taken) const {
    uint64_t first = kNone;
    for (int64_t i = thread; i < n; i += kThreads) {
      const uint64_t c = uint64_t{order_of(from[i * inner])} << 32 | static_cast<uint64_t>(i);
      if ((!goes_on || c > taken) && c < first) first = c;
    }
    return first;
  }
  TRIREME_DEVICE uint32_t order_of(T value) const {
    uint32_t ascending;
    if constexpr (std::is_integral_v<T>) {
      ascending = static_cast<uint32_t>(value) ^ 0x80000000u;
    } else {
      const float v = to_float(value);
      uint32_t bits = 0;
      memcpy(&bits, &v, sizeof bits);
      if (v == 0) bits = 0;  // both zeros
      ascending = v != v ? ~uint32_t{0} : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    }
    return is_largest ? ~ascending : ascending;
  }
};

}  // namespace trireme::cuda
