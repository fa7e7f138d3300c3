// Sums or maxima of many buffers, element by element, in the fixed tree over the buffers' index.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.h"

namespace trireme::comm {

/// out[i] = T(0, n) of sources[0][i] … sources[n - 1][i], the order of Communicator, for bytes [at, at +
/// bytes) of the sources; `out` [bytes] may be any of those places. Reads each source once. No allocation.
void tree_reduce(std::span<const std::byte* const> sources, size_t at, Bytes out, Reduction reduction);

/// The most bytes for one tree_reduce whose sources and output stay in the first-level cache.
inline constexpr size_t kReduceChunkBytes = 4096;

}  // namespace trireme::comm
