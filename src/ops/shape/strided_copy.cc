// Strided copies: merges dimensions, then rows by memcpy or word loops, or square tiles where input and
// output disagree.
#include "ops/shape/strided_copy.h"

#include <cstring>

namespace trireme::ops {
namespace {

constexpr int64_t kTile = 32;  // 32 x 32 words of 4 bytes: two such tiles fill 8 KiB of the first-level cache

/// Dimension that the input walks with step 1 while the output's innermost does not; -1 if rows are fine.
int64_t find_across(const CopyPlan& plan) {
  int64_t last = -1, dense = -1;
  for (size_t d = 0; d < plan.extent.size(); ++d) {
    if (plan.extent[d] == 1) continue;
    last = static_cast<int64_t>(d);
    if (plan.in_steps[d] == 1 && plan.extent[d] >= 4) dense = last;
  }
  if (last < 0 || dense < 0 || dense == last) return -1;
  const size_t l = static_cast<size_t>(last);
  return plan.in_steps[l] != 0 && plan.out_steps[l] == 1 && plan.extent[l] >= 4 ? dense : -1;
}

StridedLoop loop_without(CopyPlan plan, int64_t across) {
  if (across >= 0) {
    plan.extent.erase(plan.extent.begin() + across);
    plan.in_steps.erase(plan.in_steps.begin() + across);
    plan.out_steps.erase(plan.out_steps.begin() + across);
  }
  return StridedLoop(plan.extent, {plan.in_steps, plan.out_steps});
}

struct Word16 {
  uint64_t low, high;
};

}  // namespace

namespace {

/// Splits `across` into pieces of one tile, so that large transpositions have enough pieces for a team.
CopyPlan with_pieces(CopyPlan plan) {
  const int64_t found = find_across(plan);
  if (found < 0) return plan;
  const size_t a = static_cast<size_t>(found);
  if (plan.extent[a] % kTile != 0 || plan.extent[a] == kTile) return plan;
  plan.extent.insert(plan.extent.begin(), plan.extent[a] / kTile);
  plan.in_steps.insert(plan.in_steps.begin(), kTile);
  plan.out_steps.insert(plan.out_steps.begin(), plan.out_steps[a] * kTile);
  plan.extent[a + 1] = kTile;
  return plan;
}

}  // namespace

StridedCopy::StridedCopy(const CopyPlan& whole, int64_t element_bytes)
    : StridedCopy(with_pieces(whole), element_bytes, 0) {}

StridedCopy::StridedCopy(CopyPlan plan, int64_t element_bytes, int)
    : element_bytes_(element_bytes),
      in_base_(plan.in_base),
      out_base_(plan.out_base),
      is_tiled_(find_across(plan) >= 0),
      loop_(loop_without(plan, find_across(plan))) {
  if (is_tiled_) {
    const size_t across = static_cast<size_t>(find_across(plan));
    across_extent_ = plan.extent[across];
    across_out_ = plan.out_steps[across];
  }
}

template <class Word>
void StridedCopy::copy_rows(const Word* in, Word* out, base::ThreadPool& pool) const {
  const int64_t in_step = loop_.inner_steps()[0], out_step = loop_.inner_steps()[1];
  loop_.run(pool, [&](const int64_t* offset, int64_t, int64_t n) {
    const Word* x = in + offset[0];
    Word* y = out + offset[1];
    if (in_step == 1 && out_step == 1) {
      std::memcpy(y, x, static_cast<size_t>(n) * sizeof(Word));
    } else if (in_step == 0 && out_step == 1) {
      std::fill(y, y + n, *x);
    } else {
      for (int64_t i = 0; i < n; ++i) y[i * out_step] = x[i * in_step];
    }
  });
}

template <class Word>
void StridedCopy::copy_tiles(const Word* in, Word* out, base::ThreadPool& pool) const {
  // The row dimension is dense in the output, `across` in the input.
  const int64_t in_step = loop_.inner_steps()[0], out_step = loop_.inner_steps()[1];
  loop_.run(pool, [&](const int64_t* offset, int64_t, int64_t n) {
    for (int64_t r = 0; r < n; r += kTile) {
      const int64_t rows = std::min(kTile, n - r);
      for (int64_t c = 0; c < across_extent_; c += kTile) {
        const int64_t columns = std::min(kTile, across_extent_ - c);
        const Word* x = in + offset[0] + r * in_step + c;
        Word* y = out + offset[1] + r * out_step + c * across_out_;
        for (int64_t j = 0; j < columns; ++j) {
          for (int64_t i = 0; i < rows; ++i) y[j * across_out_ + i * out_step] = x[i * in_step + j];
        }
      }
    }
  });
}

void StridedCopy::run(const std::byte* in, std::byte* out, base::ThreadPool& pool) const {
  if (across_extent_ == 0) return;
  const auto go = [&](auto zero) {
    using Word = decltype(zero);
    const Word* x = reinterpret_cast<const Word*>(in) + in_base_;
    Word* y = reinterpret_cast<Word*>(out) + out_base_;
    is_tiled_ ? copy_tiles(x, y, pool) : copy_rows(x, y, pool);
  };
  switch (element_bytes_) {
    case 1: return go(uint8_t{});
    case 2: return go(uint16_t{});
    case 4: return go(uint32_t{});
    case 8: return go(uint64_t{});
    default: return go(Word16{});
  }
}

}  // namespace trireme::ops
