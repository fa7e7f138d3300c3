// Broadcasts whose rows are short: many rows are joined to one block, so that a tile is worth its call.
#pragma once

#include <cstring>

#include "ops/elementwise/strided_loop.h"

namespace trireme::ops {

/// Walks a StridedLoop of up to three operands in blocks of whole rows. An operand that is not dense in a
/// block is written out densely first; one that is the same in every row, once for all blocks of a run of
/// rows.
class ShortRows {
 public:
  static constexpr int64_t kBlock = 2048;  // elements
  static constexpr size_t kMostOperands = 3;
  static constexpr int64_t kShort = 256;

  /// True where rows are short and there are several in a run.
  static bool fits(const StridedLoop& loop) {
    return loop.inner() < kShort && loop.operands() <= kMostOperands && !loop.outer().empty() &&
           loop.outer().back() > 1;
  }

  /// `bytes`: of an element of each operand, 1, 2, 4 or 8.
  ShortRows(const StridedLoop& loop, std::array<int, kMostOperands> bytes) : operands_(loop.operands()) {
    inner_ = loop.inner();
    run_ = loop.outer().back();
    block_ = std::max<int64_t>(1, std::min(run_, kBlock / std::max<int64_t>(1, inner_)));
    outer_.assign(loop.outer().begin(), loop.outer().end() - 1);
    for (int64_t e : outer_) runs_ *= e;
    const size_t last = outer_.size() * operands_;
    for (size_t k = 0; k < operands_; ++k) {
      operand_[k] = {bytes[k], loop.outer_steps()[last + k], loop.inner_steps()[k]};
    }
    outer_steps_.assign(loop.outer_steps().begin(), loop.outer_steps().begin() + static_cast<int64_t>(last));
  }

  /// Calls tile(operands, out_offset, n) with dense operands, in parallel.
  template <class Tile>
  void run(base::ThreadPool& pool, const void* const* in, const Tile& tile) const {
    if (inner_ == 0) return;
    const int64_t blocks = (run_ + block_ - 1) / block_;
    const int64_t grain = std::max<int64_t>(1, StridedLoop::kBlock / (block_ * inner_));
    pool.for_range(runs_ * blocks, grain, [&](int64_t begin, int64_t end) {
      std::array<Dense, kMostOperands> dense;
      std::array<int64_t, kMostOperands> first{};
      for (int64_t t = begin; t < end; ++t) {
        const int64_t row = t % blocks * block_, rows = std::min(block_, run_ - row);
        if (t == begin || row == 0) {
          first = offsets(t / blocks);
          for (Dense& d : dense) d.held = 0;
        }
        std::array<const void*, kMostOperands> at{};
        for (size_t k = 0; k < operands_; ++k)
          at[k] = block_of(operand_[k], in[k], {first[k], row, rows}, dense[k]);
        tile(at.data(), (t / blocks * run_ + row) * inner_, rows * inner_);
      }
    });
  }

 private:
  struct Operand {
    int bytes = 4;
    int64_t row_step = 0, step = 0;
  };

  std::array<int64_t, kMostOperands> offsets(int64_t run) const {
    std::array<int64_t, kMostOperands> at{};
    for (size_t d = outer_.size(); d-- > 0; run /= outer_[d]) {
      for (size_t k = 0; k < operands_; ++k) at[k] += run % outer_[d] * outer_steps_[d * operands_ + k];
    }
    return at;
  }

  /// An operand as it was written out for the rows of a block.
  struct Dense {
    alignas(64) std::array<std::byte, kBlock * 8> bytes;
    int64_t held = 0;  // rows that a repeated operand was written out for
  };
  struct Rows {
    int64_t first, row, rows;
  };

  const void* block_of(const Operand& o, const void* in, const Rows& at, Dense& dense) const {
    const auto [first, row, rows] = at;
    const std::byte* from = static_cast<const std::byte*>(in) + (first + row * o.row_step) * o.bytes;
    if (o.step == 1 && o.row_step == inner_) return from;
    if (o.row_step == 0 && dense.held >= rows) return dense.bytes.data();
    switch (o.bytes) {
      case 1: write_out<uint8_t>(o, from, rows, dense.bytes.data()); break;
      case 2: write_out<uint16_t>(o, from, rows, dense.bytes.data()); break;
      case 4: write_out<uint32_t>(o, from, rows, dense.bytes.data()); break;
      default: write_out<uint64_t>(o, from, rows, dense.bytes.data()); break;
    }
    dense.held = rows;
    return dense.bytes.data();
  }

  // Extents are copied first: a store of bytes could change members as far as the compiler knows.
  template <class W>
  void write_out(const Operand& o, const std::byte* x, int64_t rows, std::byte* y) const {
    const W* from = reinterpret_cast<const W*>(x);
    W* to = reinterpret_cast<W*>(y);
    const int64_t inner = inner_, step = o.step, row_step = o.row_step;
    if (row_step == 0 && step == 1) {  // every row is the same: what is there is doubled
      std::memcpy(to, from, static_cast<size_t>(inner) * sizeof(W));
      for (int64_t r = 1; r < rows; r *= 2) {
        std::memcpy(to + r * inner, to, static_cast<size_t>(std::min(r, rows - r) * inner) * sizeof(W));
      }
      return;
    }
    constexpr int64_t kFew = 8;
    for (int64_t r = 0; r < rows; ++r, from += row_step, to += inner) {
      const W v = *from;
      if (step == 0 && inner > kFew) {
        std::fill_n(to, inner, v);
      } else if (step == 0) {
        for (int64_t i = 0; i < inner; ++i) to[i] = v;
      } else {
        for (int64_t i = 0; i < inner; ++i) to[i] = from[i * step];
      }
    }
  }

  size_t operands_;
  int64_t inner_ = 1, run_ = 1, block_ = 1, runs_ = 1;
  std::array<Operand, kMostOperands> operand_;
  tensor::Dims outer_;
  std::vector<int64_t> outer_steps_;  // [outer_, operands]
};

}  // namespace trireme::ops
