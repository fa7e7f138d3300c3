// A tile of a matrix on its way to its transpose: both sides go in whole lines, 16 bytes a thread where they
// are aligned.
#pragma once

#include <cstdint>

#include "backend/cuda/device/step.h"

/// Before a loop over single elements: more under way would take registers from the packs.
#ifdef __CUDACC__
#define TRIREME_UNROLL_SOME _Pragma("unroll 4")
#else
#define TRIREME_UNROLL_SOME
#endif

namespace trireme::cuda {

/// What of a matrix lies under a tile: `rows` lines of `columns` neighbours in x, and the other way in y.
template <class T>
struct TurnedPart {
  const T* x;  // the tile's first element
  T* y;
  int64_t x_step, y_step;  // from line to line
  int64_t rows, columns;   // inside the tile; more where it is whole
};

/// Tiles of kTile x kTile pass through shared memory. Its rows are one element longer, so that what a warp
/// takes of a few columns falls into different banks. Blocks of kThreads threads; 2 sizeof(T) bytes an
/// element.
template <class T>
struct TurnedTile {
  static constexpr int kTile = sizeof(T) <= 2 ? 64 : 32, kThreads = 256;
  static constexpr int kPitch = kTile + 1, kPacks = kTile / kPack<T>;  // packs of a line
  static constexpr int64_t kSharedBytes = int64_t{kTile} * kPitch * static_cast<int64_t>(sizeof(T));

  /// Lines of x and of y begin at 16 bytes and are whole packs long.
  bool x_packed, y_packed;

  template <class Lane>
  TRIREME_DEVICE void move(const Lane& lane, const TurnedPart<T>& part) const {
    T* tile = lane.template shared<T>();
    x_packed ? read_packs(lane, part, tile) : read_elements(lane, part, tile);
    lane.sync();
    y_packed ? write_packs(lane, part, tile) : write_elements(lane, part, tile);
    lane.sync();
  }

 private:
  static constexpr int kPackTurns = kTile * kPacks / kThreads, kTurns = kTile * kTile / kThreads;
  static_assert(kPackTurns * kThreads == kTile * kPacks);

  template <class Lane>
  TRIREME_DEVICE void read_packs(const Lane& lane, const TurnedPart<T>& part, T* tile) const {
    Pack<T> pack[kPackTurns] = {};
    TRIREME_UNROLL
    for (int s = 0; s < kPackTurns; ++s) {
      const int i = s * kThreads + lane.thread(), r = i / kPacks, c = i % kPacks * kPack<T>;
      if (r < part.rows && c < part.columns)
        pack[s] = *reinterpret_cast<const Pack<T>*>(part.x + r * part.x_step + c);
    }
    TRIREME_UNROLL
    for (int s = 0; s < kPackTurns; ++s) {
      const int i = s * kThreads + lane.thread(), at = i / kPacks * kPitch + i % kPacks * kPack<T>;
      TRIREME_UNROLL
      for (int j = 0; j < kPack<T>; ++j) tile[at + j] = pack[s].item[j];
    }
  }
  template <class Lane>
  TRIREME_DEVICE void read_elements(const Lane& lane, const TurnedPart<T>& part, T* tile) const {
    TRIREME_UNROLL_SOME
    for (int s = 0; s < kTurns; ++s) {
      const int i = s * kThreads + lane.thread(), r = i / kTile, c = i % kTile;
      if (r < part.rows && c < part.columns) tile[r * kPitch + c] = part.x[r * part.x_step + c];
    }
  }
  template <class Lane>
  TRIREME_DEVICE void write_packs(const Lane& lane, const TurnedPart<T>& part, const T* tile) const {
    TRIREME_UNROLL
    for (int s = 0; s < kPackTurns; ++s) {
      const int i = s * kThreads + lane.thread(), c = i / kPacks, r = i % kPacks * kPack<T>;
      if (c >= part.columns || r >= part.rows) continue;
      Pack<T> pack;
      TRIREME_UNROLL
      for (int j = 0; j < kPack<T>; ++j) pack.item[j] = tile[(r + j) * kPitch + c];
      *reinterpret_cast<Pack<T>*>(part.y + c * part.y_step + r) = pack;
    }
  }
  template <class Lane>
  TRIREME_DEVICE void write_elements(const Lane& lane, const TurnedPart<T>& part, const T* tile) const {
    TRIREME_UNROLL_SOME
    for (int s = 0; s < kTurns; ++s) {
      const int i = s * kThreads + lane.thread(), c = i / kTile, r = i % kTile;
      if (c < part.columns && r < part.rows) part.y[c * part.y_step + r] = tile[r * kPitch + c];
    }
  }
};

/// Whether lines that begin at `at` are whole packs; `extents` and steps of all other dimensions too.
template <class T>
bool is_whole_packs(const void* at, std::initializer_list<int64_t> elements) {
  bool whole = reinterpret_cast<uintptr_t>(at) % 16 == 0;
  for (int64_t n : elements) whole = whole && n % kPack<T> == 0;
  return whole;
}

}  // namespace trireme::cuda
