// How a buffer is cut into one slice a rank, for collectives whose ranks each own a part of the work.
#pragma once

#include <algorithm>
#include <cstddef>

namespace trireme::comm {

/// Slices begin at multiples of this many bytes: no two ranks write one cache line of an aligned buffer.
inline constexpr size_t kSliceBytes = 64;

/// Where slice `rank` of `size` begins; slice `size` begins at the end.
inline size_t slice_begin(size_t bytes, int rank, int size) {
  const size_t lines = (bytes + kSliceBytes - 1) / kSliceBytes;
  return std::min(bytes, lines * static_cast<size_t>(rank) / static_cast<size_t>(size) * kSliceBytes);
}

}  // namespace trireme::comm
