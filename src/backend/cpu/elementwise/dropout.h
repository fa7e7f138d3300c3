// Dropout whose mask is a function of (seed, stream, element): the same for every team and every cut of a
// batch.
#pragma once

#include <cstdint>
#include <span>

#include "base/rng.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// 64 elements share 16 Philox blocks: word w of block j decides element 16 w + j, so that neighbouring
/// elements come from neighbouring lanes of a vector of counters.
struct DropoutWord {
  uint64_t block;
  unsigned word;
};
constexpr DropoutWord dropout_word(uint64_t element) {
  return {element / 64 * 16 + element % 16, static_cast<unsigned>(element % 64 / 16)};
}

/// The stream of a dropout node in a step. The top bit keeps it apart from streams counted from 0.
constexpr uint64_t dropout_stream(uint64_t op, uint64_t step) {
  return uint64_t{1} << 63 | (op & 0x7fffffff) << 32 | (step & 0xffffffff);
}

/// An element is kept if its word is at least this: probability 1 - ratio within 2^-32.
constexpr uint32_t dropout_threshold(double ratio) {
  return static_cast<uint32_t>(ratio * 4294967296.0 < 4294967295.0 ? ratio * 4294967296.0 : 4294967295.0);
}

struct Dropout {
  const float* x;
  float* y;  // may be x
  int64_t n = 0;
  uint64_t first = 0;  // index of x[0] among the elements of the whole batch
  uint64_t seed = 0, stream = 0;
  double ratio = 0;  // in [0, 1)
};

/// y = kept ? x / (1 - ratio) : 0. 8 bytes and about 3 operations on 32-bit lanes per element.
/// Source: Salmon et al. 2011 (Philox4x32-10).
void dropout(const Dropout& args, base::ThreadPool& pool);

/// dropout() of a part of a larger tensor: x is starts.size() runs of `length` elements one after another, of
/// which run i begins at element first + starts[i] of the whole. The mask is the whole's.
void dropout_runs(const Dropout& args, std::span<const int64_t> starts, int64_t length,
                  base::ThreadPool& pool);

}  // namespace trireme::cpu
