// Sums of squares of many tensors, block by block: what norms of gradients are made of.
#pragma once

#include <cstdint>

#include "backend/cuda/optim/update_table.h"

namespace trireme::cuda {

/// A tensor [outer, blocks, inner] whose blocks' squares are summed.
struct SquaresGroup {
  const float* x;
  int64_t outer, blocks, inner, chunks;  // chunks of one block
  int64_t first_sum;                     // of its sums [blocks, chunks]
  int64_t first_result;
};

struct SquaresTable {
  static constexpr int kMost = 64;
  static constexpr int64_t kChunk = 16384;  // elements of a block
  SquaresGroup group[kMost];
  int64_t first_task[kMost + 1];
  int count;
};

struct PlusWide {
  TRIREME_DEVICE double operator()(double a, double b) const { return a + b; }
};

/// Sums of squares in f64 of chunks of blocks. A block's chunks depend on outer and inner alone, so that
/// ranks with fewer blocks add the same numbers in the same order. 4 bytes an element.
struct BlockSquares {
  SquaresTable table;
  double* sums;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    double* scratch = lane.template shared<double>();
    int at = 0;
    for (int64_t task = lane.block(); task < table.first_task[table.count]; task += lane.blocks()) {
      while (table.first_task[at + 1] <= task) ++at;
      const SquaresGroup& g = table.group[at];
      const int64_t local = task - table.first_task[at], block = local / g.chunks;
      const int64_t begin = local % g.chunks * SquaresTable::kChunk, all = g.outer * g.inner;
      const int64_t end = begin + SquaresTable::kChunk < all ? begin + SquaresTable::kChunk : all;
      const double own = g.outer == 1 && g.inner % 4 == 0 ? of_packs(lane, g.x + block * g.inner, begin, end)
                                                          : of_elements(lane, g, block, begin, end);
      const double sum = block_reduce(lane, own, scratch, PlusWide{});
      if (lane.thread() == 0) sums[g.first_sum + local] = sum;
    }
  }

 private:
  static constexpr int kReads = 4;  // under way

  /// Four neighbours at a time; by single reads where the block does not begin at 16 bytes.
  template <class Lane>
  TRIREME_DEVICE double of_packs(const Lane& lane, const float* x, int64_t begin, int64_t end) const {
    const bool is_aligned = (reinterpret_cast<uintptr_t>(x) & 15) == 0;
    const int64_t wide = int64_t{lane.threads()} * 4;
    double sum = 0;
    for (int64_t at = begin + int64_t{lane.thread()} * 4; at < end; at += kReads * wide) {
      float v[kReads][4] = {};
      TRIREME_UNROLL
      for (int r = 0; r < kReads; ++r) {
        if (at + r * wide < end) load_pack(x + at + r * wide, is_aligned ? 4 : 0, v[r]);
        for (int i = 0; i < 4 && !is_aligned && at + r * wide < end; ++i) v[r][i] = x[at + r * wide + i];
      }
      TRIREME_UNROLL
      for (int r = 0; r < kReads; ++r) {
        for (int i = 0; i < 4; ++i) sum += static_cast<double>(v[r][i]) * static_cast<double>(v[r][i]);
      }
    }
    return sum;
  }
  template <class Lane>
  TRIREME_DEVICE double of_elements(const Lane& lane, const SquaresGroup& g, int64_t block, int64_t begin,
                                    int64_t end) const {
    double sum = 0;
    for (int64_t i = begin + lane.thread(); i < end; i += lane.threads()) {
      const int64_t element =
          g.outer == 1 ? block * g.inner + i : (i / g.inner * g.blocks + block) * g.inner + i % g.inner;
      const auto v = static_cast<double>(g.x[element]);
      sum += v * v;
    }
    return sum;
  }
};

/// out[block] = the sum of its chunks, a warp a block.
struct JoinSquares {
  SquaresTable table;
  const double* sums;
  double* out;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int warps = lane.threads() / kWarp, in_warp = lane.thread() % kWarp;
    for (int at = 0; at < table.count; ++at) {
      const SquaresGroup& g = table.group[at];
      for (int64_t b = lane.block() * warps + lane.thread() / kWarp; b < g.blocks;
           b += lane.blocks() * warps) {
        double sum = 0;
        for (int64_t c = in_warp; c < g.chunks; c += kWarp) sum += sums[g.first_sum + b * g.chunks + c];
        for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
        if (in_warp == 0) out[g.first_result + b] = sum;
      }
    }
  }
};

}  // namespace trireme::cuda
