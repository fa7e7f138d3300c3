// How a buffer is cut into one slice a rank, for collectives whose ranks each own a part of the work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "comm/communicator.h"

namespace trireme::comm {

/// Slices begin at multiples of this many bytes: no two ranks write one cache line of an aligned buffer.
inline constexpr size_t kSliceBytes = 64;

/// Where slice `rank` of `size` begins; slice `size` begins at the end.
inline size_t slice_begin(size_t bytes, int rank, int size) {
  const size_t lines = (bytes + kSliceBytes - 1) / kSliceBytes;
  return std::min(bytes, lines * static_cast<size_t>(rank) / static_cast<size_t>(size) * kSliceBytes);
}

/// Bytes [begin, end) of a buffer.
struct Part {
  size_t begin = 0, end = 0;
  size_t bytes() const { return end - begin; }
};

/// What rank `r` of `size` reduces in an all-reduce or a reduce-scatter.
inline Part part_of(const Call& call, int r, int size) {
  if (call.what == Collective::reduce_scatter) {
    const size_t block = call.out.size();
    return {static_cast<size_t>(r) * block, static_cast<size_t>(r + 1) * block};
  }
  return {slice_begin(call.in.size(), r, size), slice_begin(call.in.size(), r + 1, size)};
}

/// Bytes [at, at + most) of the part, or what there is of them.
inline Part piece_of(Part part, size_t at, size_t most) {
  const size_t begin = std::min(part.begin + at, part.end);
  return {begin, std::min(begin + most, part.end)};
}

/// The largest part of any rank.
inline size_t longest_part(const Call& call, int size) {
  size_t longest = 0;
  for (int r = 0; r < size; ++r) longest = std::max(longest, part_of(call, r, size).bytes());
  return longest;
}

/// Copies a slice, unless it is in its place already.
inline void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace trireme::comm
