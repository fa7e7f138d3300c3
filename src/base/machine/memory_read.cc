// Reads memory in four streams.
#include "base/machine/memory_read.h"

#include <numeric>

namespace trireme::base {

uint64_t read_through(std::span<const uint64_t> words) {
  constexpr size_t kStreams = 4, kLine = 8, kAhead = 16 * kLine;
  const size_t part = words.size() / kStreams / kLine * kLine;
  uint64_t sums[kStreams][kLine] = {};
  for (size_t at = 0; at < part; at += kLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      const uint64_t* line = words.data() + s * part + at;
      __builtin_prefetch(line + kAhead);
      for (size_t j = 0; j < kLine; ++j) sums[s][j] += line[j];
    }
  }
  uint64_t sum =
      std::accumulate(words.begin() + static_cast<std::ptrdiff_t>(kStreams * part), words.end(), uint64_t{0});
  for (const auto& stream : sums) sum += std::accumulate(stream, stream + kLine, uint64_t{0});
  return sum;
}

}  // namespace trireme::base
