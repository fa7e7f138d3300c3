// Products with weights in blocks: rows of x get their form once, then groups of sixteen weight rows of all
// matrices go over the team, each over all rows of x while it lies in the first-level cache.
#include "backend/cpu/blocks/block_product.h"

#include <algorithm>
#include <atomic>

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

/// What all tasks of a loop need, made in the same fork as they: who begins a task takes of it what nobody
/// has taken, then waits for what others took. So the team meets once instead of twice.
class SharedStart {
 public:
  explicit SharedStart(int64_t pieces) : pieces_(pieces) {}
  template <class Body>
  void finish(const Body& body) {
    if (done_.load(std::memory_order_acquire) == pieces_) return;
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < pieces_;) {
      body(i);
      done_.fetch_add(1, std::memory_order_release);
    }
    while (done_.load(std::memory_order_acquire) != pieces_) pause();
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  const int64_t pieces_;
  std::atomic<int64_t> next_{0}, done_{0};
};

/// Rows of x of a tile of two groups.
constexpr int64_t kPairedRows = 4;

/// One group of weights from `first` on, or two.
struct GroupRange {
  int64_t first, count;
};

/// A call with its rows in their form.
struct Formed {
  const BlockProducts& call;
  const BlockTileFn* tiles;
  BlockTileFn pair;  // or null
  FormAt at;
  uint8_t* memory;
};

/// Rows of x by `groups` groups of a result's weights: by two the rows that whole pairs of groups take, by
/// one those from `row` on. Returns the first row that is left.
int64_t group_product(const Formed& f, const BlockResult& to, GroupRange groups, int64_t row) {
  const BlockProducts& call = f.call;
  const PackedBlocks& w = to.w;
  const int64_t column = groups.first * kGroupRows, part = w.layout().part;
  BlockTile t{.w = w.data + groups.first * w.group_bytes(),
              .blocks = w.blocks(),
              .x = {},
              .bias = to.bias == nullptr ? nullptr : to.bias + column,
              .y = nullptr,
              .ldy = w.n,
              .n = static_cast<int>(std::min(groups.count * kGroupRows, w.n - column))};
  const bool is_pair = groups.count == 2;
  while (row + (is_pair ? kPairedRows : 1) <= call.m) {
    int height = kBlockTileHeights - 1;
    while (f.tiles[height] == nullptr || int64_t{1} << height > call.m - row) --height;
    if (is_pair) height = 2;
    const BlockRowOut form = row_out(f.at, f.memory, row, w.k, part);
    t.x = {call.x + row * w.k, form.codes, form.scales, form.starts, form.sums, w.k};
    t.y = to.y + row * w.n + column;
    (is_pair ? f.pair : f.tiles[height])(t);
    row += int64_t{1} << height;
  }
  return row;
}

/// All rows of x by groups [begin, end) of a result's weights.
void range_product(const Formed& f, const BlockResult& to, int64_t begin, int64_t end) {
  for (int64_t group = begin; group < end;) {
    const int64_t count = f.pair != nullptr && f.call.m >= kPairedRows && group + 1 < end ? 2 : 1;
    const int64_t row = count == 2 ? group_product(f, to, {group, 2}, 0) : 0;
    for (int64_t i = 0; i < count && row < f.call.m; ++i) group_product(f, to, {group + i, 1}, row);
    group += count;
  }
}

}  // namespace

int64_t block_product_workspace(const PackedBlocks& w, int64_t m) {
  return FormAt(m, w.k, w.layout().part).bytes;
}

void block_products(const BlockProducts& call, void* workspace, base::ThreadPool& pool) {
  if (call.m == 0 || call.results.empty()) return;
  const BlockKernels& kernels = block_kernels(call.isa);
  const PackedBlocks& first = call.results[0].w;
  const int64_t k = first.k, part = first.layout().part;
  const BlockRowFn to_form = call.rounds ? kernels.q8_row[first.format] : kernels.f32_row[first.format];
  const Formed formed{call, call.rounds ? kernels.q8[first.format] : kernels.f32[first.format],
                      call.rounds ? kernels.q8_pair[first.format] : nullptr, FormAt(call.m, k, part),
                      static_cast<uint8_t*>(workspace)};
  int64_t groups = 0;
  for (const BlockResult& to : call.results) groups += to.w.groups();

  const int64_t rows = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, k));  // of a piece
  SharedStart forms((call.m + rows - 1) / rows);
  const auto make_forms = [&](int64_t piece) {
    for (int64_t row = piece * rows; row < std::min(call.m, (piece + 1) * rows); ++row)
      to_form(call.x + row * k, k, row_out(formed.at, formed.memory, row, k, part));
  };
  // Tasks of some ten thousand bytes: long enough that what is ahead arrives in time.
  const int64_t work = first.group_bytes() * std::max<int64_t>(1, call.m / 4);
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, work));
  pool.for_range(groups, grain, [&](int64_t begin, int64_t end) {
    forms.finish(make_forms);
    int64_t before = 0;
    for (const BlockResult& to : call.results) {
      const int64_t own = to.w.groups();
      range_product(formed, to, std::max<int64_t>(begin - before, 0), std::min(end - before, own));
      before += own;
    }
  });
}

}  // namespace trireme::cpu
