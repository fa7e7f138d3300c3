// Draws of tokens from rows that one block reads.
#pragma once

#include "backend/cuda/random/token_draw.h"

namespace trireme::cuda {

/// A block a row [n]: 8 to 13 reads for top_k and for top_p, 5 for the draw, from the second-level cache.
template <class T>
struct SampleTokens {
  static constexpr int kThreads = TokenSums::kThreads;
  static constexpr int64_t kSharedBytes = TokenSums::kSharedBytes;
  SampleArgs args;
  int place_bits;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const TokenSums sums{lane.template shared<uint64_t>()};
    for (int64_t row = lane.block(); row < args.rows; row += lane.blocks()) {
      const TokenRow<T> tokens(args, row);
      const int64_t drawn = draw(lane, sums, tokens, args.counters + row * 2);
      if (lane.thread() == 0) args.y[row] = drawn;
      if (args.log_probability == nullptr) continue;
      const float log = log_probability(lane, sums.scratch, tokens.x, drawn);
      if (lane.thread() == 0) args.log_probability[row] = log;
    }
  }

 private:
  template <class Lane>
  TRIREME_DEVICE int64_t draw(const Lane& lane, TokenSums sums, const TokenRow<T>& tokens,
                              const int64_t* counter) const {
    const TokenOrder order{args.n, place_bits};
    uint64_t most = 0;
    for (int64_t i = lane.thread(); i < args.n; i += lane.threads()) {
      const uint64_t c = order.code_of(tokens.at(i));
      most = c > most ? c : most;
    }
    most = block_reduce(lane, most, sums.scratch, LargerCode{});
    const int64_t best = order.place_of(most);
    const TokenDraw drawing{order, tokens.setting, counter, best, tokens.score(best)};
    return drawing.is_greedy() ? best : drawing.run(lane, sums, tokens, 0);
  }

  /// Of the logits as they came; numbers that are none do not count.
  template <class Lane>
  TRIREME_DEVICE float log_probability(const Lane& lane, uint64_t* scratch, const T* x, int64_t at) const {
    float most = -INFINITY;
    for (int64_t i = lane.thread(); i < args.n; i += lane.threads()) {
      const float v = to_float(x[i]);
      most = v > most ? v : most;
    }
    most = block_reduce(lane, most, reinterpret_cast<float*>(scratch), LargerLogit{}) + 0.0f;  // one zero
    double sum = 0;
    for (int64_t i = lane.thread(); i < args.n; i += lane.threads()) sum += part_of_sum(to_float(x[i]), most);
    sum = block_reduce(lane, sum, reinterpret_cast<double*>(scratch), PlusPart{});
    return log_of(to_float(x[at]), most, sum);
  }
};

}  // namespace trireme::cuda
