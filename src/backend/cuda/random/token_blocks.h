// What the blocks of a row tell each other when many draw one token: where it lies, and what the last block
// decides.
#pragma once

#ifndef __CUDACC__
#include <atomic>
#endif

#include "backend/cuda/random/token_draw.h"

namespace trireme::cuda {

inline constexpr int64_t kTokensOfBlock = 2048;  // four a thread
/// Rows of fewer tokens go to one block each, which needs no more reads of them than the launches cost.
inline constexpr int64_t kTokensForBlocks = 16384;
inline constexpr int kSumBlocks = TokenSums::kThreads / kWarp;  // of a row, for its log probability

/// Weights fall by half from bin to bin 64 times; what lies behind the last has none.
inline constexpr int kBins = 2048, kBinBits = 11;
TRIREME_DEVICE int bin_of(float score, float largest, float scale) {
  const float below = (largest - score) * scale;  // as token_weight() has it
  return below < 32.0f ? static_cast<int>(below * 64.0f) : kBins;
}

/// Tokens that the cuts may keep, where they are few.
inline constexpr int64_t kMostListed = 8192;
struct TokenList {
  const ScoredToken* tokens;
  int64_t count;
  TRIREME_DEVICE int64_t size() const { return count; }
  TRIREME_DEVICE ScoredToken at(int64_t i) const { return tokens[i]; }
};

/// How a row's token is found.
enum class DrawWay : int32_t {
  best,   ///< no temperature, or nothing has a weight
  place,  ///< no cuts: blocks sum their tokens' weights, the last looks into one block's
  list,   ///< blocks collect what the cuts may keep, the last draws from that
  row     ///< that is too much: one block draws from the whole row
};

/// Of one row, in memory of the device.
struct TokenBlocks {
  struct State {
    uint64_t all;  // weight of the row; 0: not summed
    DrawWay way;
    int32_t last_bin;    // of what is collected
    int32_t tickets[2];  // of the second and the third launch
    uint32_t listed;
  };
  State* state;
  uint64_t* codes;    // [blocks]: the greatest of each
  uint64_t* weights;  // [blocks]
  uint64_t* bins;     // [kBins]: weights
  double* parts;      // [kThreads]: of the sum of a log probability
  ScoredToken* list;  // [kMostListed]
  uint32_t* counts;   // [kBins]: tokens
  float* tops;        // [blocks]: the largest logit of each

  static TRIREME_HD int64_t blocks_of(int64_t n) { return (n + kTokensOfBlock - 1) / kTokensOfBlock; }
  static TRIREME_HD int64_t bytes(int64_t n) {
    const int64_t each = 2 * sizeof(uint64_t) + sizeof(float), bin = sizeof(uint64_t) + sizeof(uint32_t);
    const int64_t all = static_cast<int64_t>(sizeof(State)) + blocks_of(n) * each + kBins * bin +
                        TokenSums::kThreads * static_cast<int64_t>(sizeof(double)) +
                        kMostListed * static_cast<int64_t>(sizeof(ScoredToken));
    return (all + 255) / 256 * 256;
  }
  TRIREME_DEVICE TokenBlocks(void* workspace, int64_t row, int64_t n) {
    const int64_t blocks = blocks_of(n);
    auto* at = static_cast<unsigned char*>(workspace) + row * bytes(n);
    state = reinterpret_cast<State*>(at);
    codes = reinterpret_cast<uint64_t*>(at + sizeof(State));
    weights = codes + blocks;
    bins = weights + blocks;
    parts = reinterpret_cast<double*>(bins + kBins);
    list = reinterpret_cast<ScoredToken*>(parts + TokenSums::kThreads);
    counts = reinterpret_cast<uint32_t*>(list + kMostListed);
    tops = reinterpret_cast<float*>(counts + kBins);
  }
};
static_assert(sizeof(TokenBlocks::State) % sizeof(uint64_t) == 0);
static_assert(sizeof(ScoredToken) == 2 * sizeof(uint64_t));

/// Adds to a number in shared or device memory that other threads add to; returns what it was.
TRIREME_DEVICE uint32_t add_to(uint32_t* at, uint32_t amount) {
#ifdef __CUDACC__
  return atomicAdd(at, amount);
#else
  return std::atomic_ref<uint32_t>(*at).fetch_add(amount, std::memory_order_relaxed);
#endif
}
TRIREME_DEVICE uint64_t add_to(uint64_t* at, uint64_t amount) {
#ifdef __CUDACC__
  return atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(amount));
#else
  return std::atomic_ref<uint64_t>(*at).fetch_add(amount, std::memory_order_relaxed);
#endif
}

/// True in the block of a row that comes last of `blocks`; what the others wrote is then seen.
template <class Lane>
TRIREME_DEVICE bool comes_last(const Lane& lane, int32_t* ticket, int64_t blocks, uint64_t* scratch) {
  lane.sync();  // this block's part is written
  if (lane.thread() == 0) scratch[0] = static_cast<uint64_t>(lane.arrive(ticket));
  lane.sync();
  const bool is_last = static_cast<int64_t>(scratch[0]) == blocks - 1;
  lane.sync();  // the word may be written again
  return is_last;
}

/// A row of a launch.
struct RowOfLaunch {
  const SampleArgs& args;
  int place_bits;
  int64_t row;
};

/// The row's most likely token, from the codes that the first launch left; the same in every block.
template <class T, class Lane>
TRIREME_DEVICE TokenDraw draw_of_row(const Lane& lane, const RowOfLaunch& at, const TokenBlocks& of,
                                     uint64_t* scratch) {
  const TokenOrder order{at.args.n, at.place_bits};
  const TokenRow<T> tokens(at.args, at.row);
  uint64_t most = 0;
  for (int64_t b = lane.thread(); b < TokenBlocks::blocks_of(at.args.n); b += lane.threads())
    most = of.codes[b] > most ? of.codes[b] : most;
  most = block_reduce(lane, most, scratch, LargerCode{});
  const int64_t best = order.place_of(most);
  return {order, tokens.setting, at.args.counters + at.row * 2, best, tokens.score(best)};
}

/// The largest logit of the row, as it came.
template <class Lane>
TRIREME_DEVICE float top_of_row(const Lane& lane, int64_t n, const TokenBlocks& of, uint64_t* scratch) {
  float most = -INFINITY;
  for (int64_t b = lane.thread(); b < TokenBlocks::blocks_of(n); b += lane.threads())
    most = of.tops[b] > most ? of.tops[b] : most;
  return block_reduce(lane, most, reinterpret_cast<float*>(scratch), LargerLogit{}) + 0.0f;
}

}  // namespace trireme::cuda
