// Kernels that read or write at computed places.
#pragma once

#include <atomic>
#include <cstdint>

#include "backend/cuda/device/divide.h"
#include "backend/cuda/index/index.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// Index i in [0, extent), or -1 after reporting it.
TRIREME_DEVICE int64_t checked_index(const Indices& at, int64_t i) {
  const int64_t given =
      at.is_wide ? static_cast<const int64_t*>(at.data)[i] : int64_t{static_cast<const int32_t*>(at.data)[i]};
  const int64_t row = given < 0 ? given + at.extent : given;
  if (row >= 0 && row < at.extent) return row;
  report_fault(at.fault, at.step, given);
  return -1;
}
/// The row at hand, or -1.
TRIREME_DEVICE int64_t row_at_hand(const Indices& at, int64_t i) {
  const int64_t row = checked_index(at, i);
  return row >= at.first && row < at.first + at.rows ? row - at.first : -1;
}

/// Units of up to 16 bytes, a thread each; 2 slice bytes a slice.
template <class T>
struct GatherUnits {
  static constexpr bool kIndependent = true;
  Indices at;
  const T* x;
  T* y;
  Divider units, places;  // of a slice, indices
  int64_t total;          // units of y

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < total; i += stride) {
      int64_t rest = i;
      const int64_t unit = units.step(rest), place = places.step(rest);
      const int64_t row = row_at_hand(at, place);
      y[i] = row < 0 ? T{} : x[(rest * at.rows + row) * units.divisor() + unit];
    }
  }
};

/// Places named by one index an element, or by tuples.
struct IndexedPlaces {
  Indices at;
  Divider extent[kCopyRank];
  int64_t steps[kCopyRank];
  int rank;
  int64_t axis_step;
  int64_t tuple_extent[kCopyRank], tuple_step[kCopyRank];
  int depth;  // > 0: tuples
  int64_t tuples, block;

  /// Where item i's place begins, in elements, or -1.
  TRIREME_DEVICE int64_t place(int64_t i) const {
    if (depth == 0) {
      const int64_t row = checked_index(at, i);
      if (row < 0) return -1;
      int64_t from = row * axis_step;
      for (int d = rank - 1; d >= 0; --d) from += extent[d].step(i) * steps[d];
      return from;
    }
    int64_t from = i / tuples * block;
    for (int d = 0; d < depth; ++d) {
      const int64_t given = static_cast<const int64_t*>(at.data)[i * depth + d];
      const int64_t row = given < 0 ? given + tuple_extent[d] : given;
      if (row < 0 || row >= tuple_extent[d]) {
        report_fault(at.fault, at.step, given);
        return -1;
      }
      from += row * tuple_step[d];
    }
    return from;
  }
};

/// y [items, slice] = x at their places; what has no place is zero.
template <class T>
struct GatherPlaces {
  static constexpr bool kIndependent = true;
  IndexedPlaces places;
  const T* x;
  T* y;
  Divider slice;
  int64_t total;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < total; i += stride) {
      int64_t item = i;
      const int64_t along = slice.step(item), from = places.place(item);
      y[i] = from < 0 ? T{} : x[from + along];
    }
  }
};

/// The larger of *at and value stays there.
TRIREME_DEVICE void raise_to(int64_t* at, int64_t value) {
#ifdef __CUDACC__
  atomicMax(reinterpret_cast<long long*>(at), static_cast<long long>(value));
#else
  std::atomic_ref<int64_t> shared(*at);
  for (int64_t seen = shared.load(); seen < value && !shared.compare_exchange_weak(seen, value);) {
  }
#endif
}

/// winner [slices of y] = 1 + the last update that goes there, 0: none. Which one is the last does not depend
/// on the order of threads.
struct FindWinners {
  static constexpr bool kIndependent = true;
  IndexedPlaces places;
  int64_t* winner;
  int64_t items, slice;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < items; i += stride) {
      const int64_t to = places.place(i);
      if (to >= 0) raise_to(winner + to / slice, i + 1);
    }
  }
};

/// Updates that won are written.
template <class T>
struct WriteWinners {
  static constexpr bool kIndependent = true;
  IndexedPlaces places;
  const int64_t* winner;
  const T* updates;
  T* y;
  Divider slice;
  int64_t total;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < total; i += stride) {
      int64_t item = i;
      const int64_t along = slice.step(item), to = places.place(item);
      if (to >= 0 && winner[to / slice.divisor()] == item + 1) y[to + along] = updates[i];
    }
  }
};

}  // namespace trireme::cuda
