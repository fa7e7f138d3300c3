// Products with weights in blocks: rows of x get their form once, then groups of sixteen weight rows go over
// the team, each over all rows of x while it lies in the first-level cache.
#include "backend/cpu/blocks/block_product.h"

#include <algorithm>

#include "backend/cpu/blocks/block_tiles.h"

namespace trireme::cpu {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Where each array of the rows' form lies in the workspace.
struct FormAt {
  int64_t scales, starts, sums, bytes;
  FormAt(int64_t m, int64_t k, int64_t part) {
    scales = aligned(m * k);
    starts = scales + aligned(m * (k / kUnit) * 4);
    sums = starts + aligned(m * (k / part) * 4);
    bytes = sums + aligned(m * (k / part) * 4);
  }
};

BlockRowOut row_out(const FormAt& at, uint8_t* memory, int64_t row, int64_t k, int64_t part) {
  const auto array = [&](int64_t from, int64_t each) { return memory + from + 4 * row * each; };
  return {.codes = reinterpret_cast<int8_t*>(memory) + row * k,
          .scales = reinterpret_cast<float*>(array(at.scales, k / kUnit)),
          .starts = reinterpret_cast<int32_t*>(array(at.starts, k / part)),
          .sums = reinterpret_cast<float*>(array(at.sums, k / part))};
}

/// All rows of x by one group of weights.
void group_product(const BlockProduct& call, const BlockTileFn* tiles, const FormAt& at, uint8_t* memory,
                   int64_t group) {
  const PackedBlocks& w = call.w;
  const int64_t column = group * kGroupRows, part = w.layout().part;
  BlockTile t{.w = w.data + group * w.group_bytes(),
              .blocks = w.blocks(),
              .x = {},
              .bias = call.bias == nullptr ? nullptr : call.bias + column,
              .y = nullptr,
              .ldy = w.n,
              .n = static_cast<int>(std::min(kGroupRows, w.n - column))};
  for (int64_t row = 0; row < call.m;) {
    int height = kBlockTileHeights - 1;
    while (tiles[height] == nullptr || int64_t{1} << height > call.m - row) --height;
    const BlockRowOut form = row_out(at, memory, row, w.k, part);
    t.x = {call.x + row * w.k, form.codes, form.scales, form.starts, form.sums, w.k};
    t.y = call.y + row * w.n + column;
    tiles[height](t);
    row += int64_t{1} << height;
  }
}

}  // namespace

int64_t block_product_workspace(const PackedBlocks& w, int64_t m) {
  return FormAt(m, w.k, w.layout().part).bytes;
}

void block_product(const BlockProduct& call, void* workspace, base::ThreadPool& pool) {
  if (call.m == 0 || call.w.n == 0) return;
  const BlockKernels& kernels = block_kernels(call.isa);
  const PackedBlocks& w = call.w;
  const int64_t part = w.layout().part;
  const FormAt at(call.m, w.k, part);
  auto* memory = static_cast<uint8_t*>(workspace);
  const BlockRowFn to_form = call.rounds ? kernels.q8_row[w.format] : kernels.f32_row[w.format];
  pool.for_range(call.m, std::max<int64_t>(1, 32768 / std::max<int64_t>(1, w.k)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row)
                     to_form(call.x + row * w.k, w.k, row_out(at, memory, row, w.k, part));
                 });
  const BlockTileFn* tiles = call.rounds ? kernels.q8[w.format] : kernels.f32[w.format];
  // Tasks of some ten thousand bytes: long enough that what is ahead arrives in time.
  const int64_t work = w.group_bytes() * std::max<int64_t>(1, call.m / 4);
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, work));
  pool.for_range(w.groups(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) group_product(call, tiles, at, memory, group);
  });
}

}  // namespace trireme::cpu
