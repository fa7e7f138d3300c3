// Draws of tokens from rows that many blocks read, in three launches, each of which reads the row once: what
// the first two find out.
#pragma once

#include "backend/cuda/random/token_blocks.h"

namespace trireme::cuda {

/// First launch, a block for kTokensOfBlock tokens of a row: their greatest code and largest logit; zeros for
/// what the launches behind it count.
template <class T>
struct TopTokens {
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
    const TokenRow<T> tokens(args, row);
    const TokenOrder order{args.n, place_bits};
    const int64_t begin = block * kTokensOfBlock, rest = args.n - begin;
    uint64_t most = 0;
    float top = -INFINITY;
    for (int64_t i = begin + lane.thread(); i < begin + (rest < kTokensOfBlock ? rest : kTokensOfBlock);
         i += kThreads) {
      const float logit = to_float(tokens.x[i]);
      const uint64_t c = order.code_of(tokens.at(i));
      most = c > most ? c : most;
      top = logit > top ? logit : top;
    }
    auto* scratch = lane.template shared<uint64_t>();
    most = block_reduce(lane, most, scratch, LargerCode{});
    top = block_reduce(lane, top, reinterpret_cast<float*>(scratch), LargerLogit{});
    if (lane.thread() == 0) of.codes[block] = most, of.tops[block] = top;
    for (int64_t i = block * kThreads + lane.thread(); i < kBins; i += blocks * kThreads)
      of.bins[i] = 0, of.counts[i] = 0;
    if (block == 0 && lane.thread() == 0) *of.state = {};
  }
};

/// Second launch: tokens and weights by bins, from which the last block of a row decides how its token is
/// found. Behind the blocks of a row, where log probabilities are asked for, kSumBlocks that sum its
/// exponentials, in the order of one block of kThreads.
template <class T>
struct CountBins {
  static constexpr int kThreads = TokenSums::kThreads;
  static constexpr int kTile = 256;  // of each of a warp's sums
  static constexpr int64_t kBinBytes = kBins * (sizeof(uint64_t) + sizeof(uint32_t));
  static constexpr int64_t kTileBytes = kTile * kWarp * sizeof(float);
  static constexpr int64_t kSharedBytes =
      TokenSums::kSharedBytes + (kBinBytes > kTileBytes ? kBinBytes : kTileBytes);
  SampleArgs args;
  int place_bits;
  void* workspace;

  static int64_t blocks_of(const SampleArgs& args) {
    return TokenBlocks::blocks_of(args.n) + (args.log_probability == nullptr ? 0 : kSumBlocks);
  }

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t counting = TokenBlocks::blocks_of(args.n);
    const int64_t blocks = counting + (args.log_probability == nullptr ? 0 : kSumBlocks);
    const int64_t row = lane.block() / blocks, block = lane.block() % blocks;
    const TokenBlocks of(workspace, row, args.n);
    if (block >= counting) {
      sum_exponentials(lane, of, row, static_cast<int>(block - counting));
    } else {
      count(lane, of, row, block);
    }
  }

 private:
  template <class Lane>
  TRIREME_DEVICE void count(const Lane& lane, const TokenBlocks& of, int64_t row, int64_t block) const {
    auto* scratch = lane.template shared<uint64_t>();
    const TokenDraw drawing = draw_of_row<T>(lane, {args, place_bits, row}, of, scratch);
    const bool is_cut = drawing.cuts_count() || drawing.cuts_share();
    if (drawing.is_greedy() || !is_cut) {  // the whole block, as all blocks of the row
      if (block == 0 && lane.thread() == 0)
        of.state->way = drawing.is_greedy() ? DrawWay::best : DrawWay::place;
      return;
    }
    uint64_t* bins = scratch + TokenSums::kSharedBytes / sizeof(uint64_t);
    auto* counts = reinterpret_cast<uint32_t*>(bins + kBins);
    for (int i = lane.thread(); i < kBins; i += kThreads) bins[i] = 0, counts[i] = 0;
    lane.sync();
    const TokenRow<T> tokens(args, row);
    const float scale = tensor::weight_scale(tokens.setting[0]);
    const int64_t begin = block * kTokensOfBlock, rest = args.n - begin;
    for (int64_t i = begin + lane.thread(); i < begin + (rest < kTokensOfBlock ? rest : kTokensOfBlock);
         i += kThreads) {
      const float score = tokens.score(i);
      const int bin = bin_of(score, drawing.largest, scale);
      if (bin == kBins) continue;
      add_to(&counts[bin], uint32_t{1});
      add_to(&bins[bin], drawing.weight(score));
    }
    lane.sync();
    for (int i = lane.thread(); i < kBins; i += kThreads) {
      if (counts[i] == 0) continue;
      add_to(&of.counts[i], counts[i]);
      add_to(&of.bins[i], bins[i]);
    }
    if (comes_last(lane, &of.state->tickets[0], TokenBlocks::blocks_of(args.n), scratch))
      decide(lane, of, drawing, TokenSums{scratch});
  }

  /// Which bins the cuts may keep: with top_k those that reach its count; else those that reach the share of
  /// top_p.
  template <class Lane>
  TRIREME_DEVICE void decide(const Lane& lane, const TokenBlocks& of, const TokenDraw& drawing,
                             TokenSums sums) const {
    const auto code = [](int64_t bin) { return static_cast<uint64_t>(kBins - 1 - bin); };
    const auto tokens = [&](int64_t i) { return Counted{code(i), of.counts[i]}; };
    const auto weights = [&](int64_t i) { return Counted{code(i), of.bins[i]}; };
    const uint64_t all = sums.total(lane, kBins, weights);
    const uint64_t reached =
        drawing.cuts_count()
            ? sums.search(lane, kBins, kBinBits, static_cast<uint64_t>(drawing.top_k()), tokens)
            : sums.search(lane, kBins, kBinBits, tensor::nucleus(drawing.setting[2], all), weights);
    const int64_t last = kBins - 1 - static_cast<int64_t>(reached);
    const uint64_t listed = sums.total(lane, last + 1, tokens);
    if (lane.thread() != 0) return;
    of.state->all = drawing.cuts_count() ? 0 : all;
    of.state->last_bin = static_cast<int32_t>(last);
    of.state->way = all == 0                                       ? DrawWay::best
                    : listed <= static_cast<uint64_t>(kMostListed) ? DrawWay::list
                                                                   : DrawWay::row;
  }

  /// The sums of the threads of a warp of SampleTokens: of i, i + kThreads, ... for kWarp places i. The whole
  /// block makes a tile of exponentials, a warp adds them up in their order.
  template <class Lane>
  TRIREME_DEVICE void sum_exponentials(const Lane& lane, const TokenBlocks& of, int64_t row, int warp) const {
    auto* scratch = lane.template shared<uint64_t>();
    auto* tile = reinterpret_cast<float*>(scratch + TokenSums::kSharedBytes / sizeof(uint64_t));
    const float most = top_of_row(lane, args.n, of, scratch);
    const T* x = static_cast<const T*>(args.x) + row * args.n;
    const int column = lane.thread() % kWarp;
    const int64_t first = warp * kWarp + column, rows = (args.n + kThreads - 1) / kThreads;
    double sum = 0;
    for (int64_t from = 0; from < rows; from += kTile) {
      const int64_t left = rows - from < kTile ? rows - from : kTile;
      for (int64_t r = lane.thread() / kWarp; r < left; r += kThreads / kWarp) {
        const int64_t i = first + (from + r) * kThreads;
        // What is behind the row adds nothing, as what is no number does not.
        tile[r * kWarp + column] = i < args.n ? static_cast<float>(part_of_sum(to_float(x[i]), most)) : 0.0f;
      }
      lane.sync();
      for (int64_t r = 0; lane.thread() < kWarp && r < left; ++r)
        sum += static_cast<double>(tile[r * kWarp + column]);
      lane.sync();
    }
    if (lane.thread() < kWarp) of.parts[first] = sum;
  }
};

}  // namespace trireme::cuda
