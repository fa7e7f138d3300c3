// Draws of tokens from rows that many blocks read: the third launch.
#pragma once

#include "backend/cuda/random/token_blocks.h"

namespace trireme::cuda {

/// Third launch: blocks collect or sum what was decided, the last of a row draws.
template <class T>
struct DrawTokens {
  static constexpr int kThreads = TokenSums::kThreads;
  static constexpr int64_t kSharedBytes = TokenSums::kSharedBytes;
  SampleArgs args;
  int place_bits;
  void* workspace;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t blocks = TokenBlocks::blocks_of(args.n);
    const int64_t row = lane.block() / blocks, block = lane.block() % blocks;
    const TokenBlocks of(workspace, row, args.n);
    const TokenSums sums{lane.template shared<uint64_t>()};
    const DrawWay way = of.state->way;
    const bool is_alone = way == DrawWay::best || way == DrawWay::row;
    if (is_alone && block > 0) return;  // the whole block
    const TokenDraw drawing = draw_of_row<T>(lane, {args, place_bits, row}, of, sums.scratch);
    TokenRow<T> tokens(args, row);
    tokens.begin = block * kTokensOfBlock;
    tokens.end = tokens.begin + kTokensOfBlock < args.n ? tokens.begin + kTokensOfBlock : args.n;
    if (way == DrawWay::list) collect(lane, of, drawing, tokens);
    if (way == DrawWay::place) sum_weights(lane, of, drawing, tokens, sums);
    if (!is_alone && !comes_last(lane, &of.state->tickets[1], blocks, sums.scratch)) return;
    int64_t drawn = drawing.best;
    if (way == DrawWay::row) drawn = drawing.run(lane, sums, TokenRow<T>(args, row), of.state->all);
    if (way == DrawWay::list)
      drawn =
          drawing.run(lane, sums, TokenList{of.list, static_cast<int64_t>(of.state->listed)}, of.state->all);
    if (way == DrawWay::place) drawn = draw_by_place(lane, of, drawing, tokens, sums);
    if (lane.thread() == 0) args.y[row] = drawn;
    if (args.log_probability == nullptr) return;
    const float most = top_of_row(lane, args.n, of, sums.scratch);
    const double sum =
        block_reduce(lane, of.parts[lane.thread()], reinterpret_cast<double*>(sums.scratch), PlusPart{});
    if (lane.thread() == 0) args.log_probability[row] = log_of(to_float(tokens.x[drawn]), most, sum);
  }

 private:
  /// In any order: sums do not depend on it. They fit, as the launch before counted.
  template <class Lane>
  TRIREME_DEVICE void collect(const Lane& lane, const TokenBlocks& of, const TokenDraw& drawing,
                              const TokenRow<T>& tokens) const {
    const float scale = tensor::weight_scale(tokens.setting[0]);
    for (int64_t i = lane.thread(); i < tokens.size(); i += kThreads) {
      const ScoredToken t = tokens.at(i);
      if (bin_of(t.score, drawing.largest, scale) > of.state->last_bin) continue;
      of.list[add_to(&of.state->listed, uint32_t{1})] = t;
    }
  }

  template <class Lane>
  TRIREME_DEVICE void sum_weights(const Lane& lane, const TokenBlocks& of, const TokenDraw& drawing,
                                  const TokenRow<T>& tokens, TokenSums sums) const {
    const uint64_t sum =
        sums.total(lane, tokens.size(), [&](int64_t i) { return drawing.by_place(tokens.at(i), 0); });
    if (lane.thread() == 0) of.weights[lane.block() % TokenBlocks::blocks_of(args.n)] = sum;
  }

  /// The block whose tokens reach the drawn part, then the token among them.
  template <class Lane>
  TRIREME_DEVICE int64_t draw_by_place(const Lane& lane, const TokenBlocks& of, const TokenDraw& drawing,
                                       TokenRow<T> tokens, TokenSums sums) const {
    const int64_t blocks = TokenBlocks::blocks_of(args.n);
    const auto by_block = [&](int64_t b) {
      return Counted{static_cast<uint64_t>(args.n - 1 - b), of.weights[b]};
    };
    const uint64_t total = sums.total(lane, blocks, by_block);
    if (total == 0) return drawing.best;
    const uint64_t goal = drawing.part_of(total) + 1;
    const int64_t block =
        args.n - 1 - static_cast<int64_t>(sums.search(lane, blocks, place_bits, goal, by_block));
    const uint64_t before = sums.total(lane, block, by_block);
    tokens.begin = block * kTokensOfBlock;
    tokens.end = tokens.begin + kTokensOfBlock < args.n ? tokens.begin + kTokensOfBlock : args.n;
    const uint64_t at = sums.search(lane, tokens.size(), place_bits, goal - before,
                                    [&](int64_t i) { return drawing.by_place(tokens.at(i), 0); });
    return args.n - 1 - static_cast<int64_t>(at);
  }
};

}  // namespace trireme::cuda
