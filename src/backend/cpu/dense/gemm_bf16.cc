// Packs pairs of bf16 along k into 32-bit lanes, so that the tiles and the plan of f32 products serve;
// results are summed in f32 beside the task and rounded once.
#include "backend/cpu/dense/gemm_bf16.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "backend/cpu/tiles/dense_bf16.h"
#include "backend/cpu/dense/gemm_blocks_plan.h"
#include "backend/cpu/device/round_up.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

// Sums of a task that needs several passes over depth wait in the third-level cache.
constexpr int64_t kTaskFloats = 1024 * 1024;

/// The product as its plan sees it: k in pairs.
BlockProduct in_pairs(const Bf16Product& p) {
  BlockProduct lanes{.m = p.m, .k = (p.k + 1) / 2, .n = p.n};
  lanes.a.transposed = p.a.transposed;
  lanes.b.transposed = p.b.transposed;
  return lanes;
}

struct Layout {
  BlockGrid grid;
  bool one_pass = true;
  int64_t task_rows = 0, task_columns = 0;
  size_t a_at = 0, sums_at = 0, bias_at = 0, columns_at = 0, lane_bytes = 0;
};

Layout lay_out(const Bf16Product& p, const DenseKernels& tiles, int threads) {
  const BlockProduct lanes = in_pairs(p);
  Layout l{.grid = plan_blocks(lanes, tiles, {.threads = threads})};
  l.one_pass = l.grid.depth >= lanes.k;
  if (!l.one_pass) l.grid = plan_blocks(lanes, tiles, {.threads = threads, .task_floats = kTaskFloats});
  const BlockGrid& g = l.grid;
  l.task_columns = g.block_panels * tiles.panel;
  l.task_rows = (g.tiles + g.m_blocks - 1) / g.m_blocks * tiles.tile_rows;
  const int64_t sums = l.one_pass ? tiles.tile_rows * tiles.panel : l.task_rows * l.task_columns;
  const int64_t statistics = std::max(l.task_columns, l.task_rows);
  l.a_at = g.b_bytes;
  l.sums_at = align64(g.lane_bytes);
  l.bias_at = l.sums_at + align64(static_cast<size_t>(sums) * sizeof(float));
  l.columns_at = l.bias_at + align64(static_cast<size_t>(l.task_columns) * sizeof(float));
  l.lane_bytes = l.columns_at + 2 * align64(static_cast<size_t>(statistics) * sizeof(float));
  return l;
}

/// One task and the memory of its lane.
struct Bf16Task {
  int64_t first_tile, last_tile, first_panel, last_panel;
  float *b, *a, *sums, *bias, *row_sums, *column_sums;  // the last two null if not asked for
};

class Bf16Worker {
 public:
  Bf16Worker(const Bf16Product& p, const Layout& l)
      : p_(p),
        l_(l),
        g_(l.grid),
        v_(*bf16_kernels()),
        kernels_(dense_kernels(Isa::avx512)),
        height_(p.m / g_.tiles),
        tall_(p.m - height_ * g_.tiles) {}

  void run(int64_t index, char* lane) const {
    const Bf16Task t = task(index, lane);
    const int64_t column = t.first_panel * v_.tiles.panel;
    if (p_.bias != nullptr) v_.widen(p_.bias + column, columns_of(t), t.bias);
    const int64_t pairs = (p_.k + 1) / 2;
    for (int64_t k0 = 0; k0 < pairs; k0 += g_.depth) {
      GemmTile call;
      call.k = std::min(g_.depth, pairs - k0);
      call.accumulate = call.adds_last = k0 > 0;
      const bool last_pass = k0 + call.k == pairs;
      if (p_.packed_b == nullptr) pack_columns(t, k0, call.k);
      for (int64_t first = t.first_tile; first < t.last_tile; first += kBlockGroupTiles) {
        const BlockTiles group{first, std::min(first + kBlockGroupTiles, t.last_tile)};
        pack_rows(t, group, k0, call.k);
        call.b = p_.packed_b == nullptr ? t.b : p_.packed_b + packed_at(k0, call.k, t.first_panel);
        multiply(t, group, call, last_pass);
      }
    }
    const int64_t row = tile_begin(t.first_tile);
    if (t.row_sums != nullptr) store(t.row_sums, tile_begin(t.last_tile) - row, p_.row_sums, row);
    if (t.column_sums != nullptr) store(t.column_sums, columns_of(t), p_.column_sums, column);
  }

  /// All passes over depth of one panel, to where packed_at() looks for them.
  void pack_whole(int64_t panel, float* packed) const {
    const int64_t pairs = (p_.k + 1) / 2;
    for (int64_t k0 = 0; k0 < pairs; k0 += g_.depth) {
      const int64_t depth = std::min(g_.depth, pairs - k0);
      pack_panel(panel * v_.tiles.panel, k0, depth, packed + packed_at(k0, depth, panel));
    }
  }

 private:
  /// Pass after pass all panels, so that the panels of a task follow each other.
  int64_t packed_at(int64_t k0, int64_t depth, int64_t panel) const {
    return k0 / g_.depth * g_.panels * packed_panel(g_.depth, v_.tiles.panel) +
           panel * packed_panel(depth, v_.tiles.panel);
  }

  int64_t tile_begin(int64_t tile) const { return tile * height_ + std::min(tile, tall_); }
  int64_t columns_of(const Bf16Task& t) const {
    return std::min(p_.n, t.last_panel * v_.tiles.panel) - t.first_panel * v_.tiles.panel;
  }
  int panel_width(int64_t column) const {
    return p_.n - column > v_.tiles.width ? v_.tiles.panel : v_.tiles.width;
  }

  Bf16Task task(int64_t index, char* lane) const {
    const int64_t nb = index % g_.n_blocks, mb = index / g_.n_blocks;
    const auto at = [&](size_t bytes) { return reinterpret_cast<float*>(lane + bytes); };
    Bf16Task t{g_.tiles * mb / g_.m_blocks, g_.tiles * (mb + 1) / g_.m_blocks, nb * g_.block_panels,
               std::min(g_.panels, (nb + 1) * g_.block_panels)};
    t.b = at(0);
    t.a = at(l_.a_at);
    t.sums = at(l_.sums_at);
    t.bias = at(l_.bias_at);
    if (nb == 0 && p_.row_sums != nullptr) t.row_sums = at(l_.columns_at);
    if (mb == 0 && p_.column_sums != nullptr)
      t.column_sums = at(l_.columns_at + (l_.lane_bytes - l_.columns_at) / 2);
    return t;
  }

  /// Rows 2 l and 2 l + 1 of an operand whose rows are contiguous, from `column` on.
  PairRows pair(const Bf16Operand& x, int64_t l, int64_t column, int64_t step = 0) const {
    const uint16_t* row = x.data + 2 * l * x.ld + column;
    return {row, 2 * l + 1 < p_.k ? row + x.ld : nullptr, step};
  }

  struct Rows {
    int64_t first, count;
  };

  /// Lanes of rows that are contiguous along k: [lane][stride]. Missing rows repeat the first.
  void transpose(const Bf16Operand& x, Rows at, BlockTiles lanes, float* out, int64_t stride) const {
    const auto [row, count] = at;
    const float* rows[kRowSlots];
    for (int r = 0; r < kRowSlots; ++r) {
      const uint16_t* from = x.data + (row + (r < count ? r : 0)) * x.ld + 2 * lanes.first;
      rows[r] = reinterpret_cast<const float*>(from);
    }
    // Odd rows of an odd length start in the middle of a lane: only the vectors may read lanes there.
    const int64_t whole = (std::min(lanes.last, p_.k / 2) - lanes.first) / 4 * 4;
    v_.tiles.transpose(rows, whole, out, stride);
    for (int64_t l = whole; l < lanes.last - lanes.first; ++l) {
      const int64_t k = 2 * (lanes.first + l);
      for (int r = 0; r < kRowSlots; ++r) {
        const uint16_t* from = x.data + (row + (r < count ? r : 0)) * x.ld + k;
        const uint32_t pair = from[0] | (k + 1 < p_.k ? uint32_t{from[1]} << 16 : 0);
        std::memcpy(out + l * stride + r, &pair, sizeof pair);
      }
    }
  }

  void pack_columns(const Bf16Task& t, int64_t k0, int64_t depth) const {
    float* out = t.b;
    int64_t panel = t.first_panel;
    if (!p_.b.transposed) {
      const int64_t whole = std::min(t.last_panel, p_.n / v_.tiles.panel) - panel;
      for (int64_t l = 0; l < depth; ++l)
        v_.interleave_panels(pair(p_.b, k0 + l, panel * v_.tiles.panel), whole,
                             lanes(out + l * v_.tiles.panel), packed_panel(depth, v_.tiles.panel));
      panel += whole;
      out += whole * packed_panel(depth, v_.tiles.panel);
    }
    for (; panel < t.last_panel; ++panel) out += pack_panel(panel * v_.tiles.panel, k0, depth, out);
    if (t.column_sums == nullptr) return;
    out = t.b;
    for (panel = t.first_panel; panel < t.last_panel; ++panel) {
      const int64_t column = panel * v_.tiles.panel;
      const int width = panel_width(column);
      add_sums({out, width, depth}, std::min<int64_t>(width, p_.n - column),
               t.column_sums + column - t.first_panel * v_.tiles.panel, k0 > 0);
      out += packed_panel(depth, width);
    }
  }

  /// One panel whose columns lie along k, or the last one. Returns the lanes it takes.
  int64_t pack_panel(int64_t column, int64_t k0, int64_t depth, float* out) const {
    const int width = panel_width(column);
    const int64_t valid = std::min<int64_t>(width, p_.n - column);
    if (p_.b.transposed) {
      for (int j = 0; j < width; j += kRowSlots) {
        const int64_t first = j < valid ? column + j : column;
        transpose(p_.b, {first, valid - j}, {k0, k0 + depth}, out + j, width);
      }
    } else {
      if (valid < width) std::fill_n(out, depth * width, 0.0f);
      for (int64_t l = 0; l < depth; ++l) {
        const PairRows rows = pair(p_.b, k0 + l, column);
        v_.interleave(rows.first, rows.second, valid, lanes(out + l * width));
      }
    }
    return packed_panel(depth, width);
  }

  static uint32_t* lanes(float* packed) { return reinterpret_cast<uint32_t*>(packed); }

  void pack_rows(const Bf16Task& t, BlockTiles group, int64_t k0, int64_t depth) const {
    const int64_t each = packed_tile(depth);
    if (p_.a.transposed) {
      pack_row_pairs(group, k0, depth, t.a);
    } else {
      for (int64_t tile = group.first; tile < group.last; ++tile) {
        const int64_t row = tile_begin(tile), rows = tile_begin(tile + 1) - row;
        transpose(p_.a, {row, rows}, {k0, k0 + depth}, t.a + (tile - group.first) * each, kRowSlots);
      }
    }
    for (int64_t tile = group.first; tile < group.last; ++tile) {
      const int64_t row = tile_begin(tile), rows = tile_begin(tile + 1) - row;
      float* packed = t.a + (tile - group.first) * each;
      if (t.row_sums != nullptr)
        add_sums({packed, kRowSlots, depth}, rows, t.row_sums + row - tile_begin(t.first_tile), k0 > 0);
      if (v_.turn != nullptr) v_.turn(packed, depth);
    }
  }

  /// Tiles of an operand whose columns are rows of a: each pair of rows is read once along the group. Tiles
  /// of one height form a run; one that would read past the last column is masked.
  void pack_row_pairs(BlockTiles group, int64_t k0, int64_t depth, float* out) const {
    const int64_t each = packed_tile(depth);
    int64_t safe = group.last;
    while (safe > group.first && tile_begin(safe - 1) + kRowSlots > p_.m) --safe;
    const int64_t tall = std::clamp(tall_, group.first, safe);
    const auto run = [&](int64_t l, int64_t first, int64_t last, int64_t step) {
      v_.interleave_tiles(pair(p_.a, k0 + l, tile_begin(first), step), last - first,
                          lanes(out + (first - group.first) * each + l * kRowSlots), each);
    };
    for (int64_t l = 0; l < depth; ++l) {
      if (tall > group.first) run(l, group.first, tall, height_ + 1);
      if (safe > tall) run(l, tall, safe, height_);
      for (int64_t tile = safe; tile < group.last; ++tile) {
        const int64_t row = tile_begin(tile);
        const PairRows rows = pair(p_.a, k0 + l, row);
        v_.interleave(rows.first, rows.second, tile_begin(tile + 1) - row,
                      lanes(out + (tile - group.first) * each + l * kRowSlots));
      }
    }
  }

  /// sums[j] (+)= both halves of packed[l][j], in f32: one chain per pass.
  static void add_sums(const PackedBlock& block, int64_t valid, float* sums, bool accumulate) {
    const auto [packed, width, depth] = block;
    float total[32] = {};
    for (int64_t l = 0; l < depth; ++l) {
      for (int j = 0; j < valid; ++j) {
        uint32_t pair;
        std::memcpy(&pair, packed + l * width + j, sizeof pair);
        const uint32_t low = pair << 16, high = pair & 0xFFFF0000u;
        float x, y;
        std::memcpy(&x, &low, sizeof x);
        std::memcpy(&y, &high, sizeof y);
        total[j] += x + y;
      }
    }
    for (int64_t j = 0; j < valid; ++j) sums[j] = accumulate ? sums[j] + total[j] : total[j];
  }

  void multiply(const Bf16Task& t, BlockTiles group, GemmTile& call, bool last_pass) const {
    call.ldc = l_.one_pass ? v_.tiles.panel : l_.task_columns;
    for (int64_t panel = t.first_panel; panel < t.last_panel; ++panel) {
      const int64_t column = panel * v_.tiles.panel, inside = column - t.first_panel * v_.tiles.panel;
      const int width = panel_width(column);
      call.n = static_cast<int>(std::min<int64_t>(width, p_.n - column));
      call.bias = p_.bias != nullptr && !call.accumulate ? t.bias + inside : nullptr;
      call.a = t.a;
      for (int64_t tile = group.first; tile < group.last; ++tile, call.a += packed_tile(call.k)) {
        const int64_t row = tile_begin(tile), rows = tile_begin(tile + 1) - row;
        call.c = t.sums;
        if (!l_.one_pass) call.c += (row - tile_begin(t.first_tile)) * call.ldc + inside;
        v_.tiles.gemm_packed[width / v_.tiles.width - 1][rows - 1](call);
        if (last_pass) finish(call, row, rows, column);
      }
      call.b += packed_panel(call.k, width);
    }
  }

  /// Residual and activation of a finished tile, which is then stored.
  void finish(const GemmTile& tile, int64_t row, int64_t rows, int64_t column) const {
    const Epilogue& e = p_.epilogue;
    const auto add_residual = [&] {
      for (int64_t r = 0; r < rows; ++r)
        v_.add(p_.residual + (row + r) * p_.ldc + column, tile.n, tile.c + r * tile.ldc);
    };
    if (p_.residual != nullptr && !e.act_before_residual) add_residual();
    if (e.act != Activation::none) kernels_.activate({tile.c, tile.ldc, rows, tile.n, nullptr}, e);
    if (p_.residual != nullptr && e.act_before_residual) add_residual();
    for (int64_t r = 0; r < rows; ++r)
      store(tile.c + r * tile.ldc, tile.n, p_.c, (row + r) * p_.ldc + column);
  }

  /// Sums to elements [at, at + count) of a result.
  void store(const float* sums, int64_t count, void* to, int64_t at) const {
    if (p_.is_wide) {
      std::copy_n(sums, count, static_cast<float*>(to) + at);
    } else {
      v_.narrow(sums, count, static_cast<uint16_t*>(to) + at);
    }
  }

  const Bf16Product& p_;
  const Layout& l_;
  const BlockGrid& g_;
  const Bf16Kernels& v_;
  const DenseKernels& kernels_;
  int64_t height_, tall_;  // the first tall_ tiles have height_ + 1 rows
};

}  // namespace

bool has_bf16_products() { return bf16_kernels() != nullptr; }

int64_t packed_bf16_floats(int64_t k, int64_t n) {
  const DenseKernels& tiles = bf16_kernels()->tiles;
  const Bf16Product product{.m = 1, .k = k, .n = n};
  const BlockGrid grid = lay_out(product, tiles, 1).grid;
  const int64_t pairs = (k + 1) / 2, passes = (pairs + grid.depth - 1) / grid.depth;
  return passes * grid.panels * packed_panel(grid.depth, tiles.panel);
}

void pack_bf16_columns(const Bf16Operand& b, int64_t k, int64_t n, float* packed) {
  const Bf16Product product{.m = 1, .k = k, .n = n, .b = b};
  const Layout layout = lay_out(product, bf16_kernels()->tiles, 1);
  const Bf16Worker worker(product, layout);
  for (int64_t panel = 0; panel < layout.grid.panels; ++panel) worker.pack_whole(panel, packed);
}

size_t gemm_bf16_workspace_bytes(const Bf16Product& p, int threads) {
  if (p.m == 0 || p.n == 0 || p.k == 0) return 0;
  return static_cast<size_t>(threads) * lay_out(p, bf16_kernels()->tiles, threads).lane_bytes + 64;
}

void gemm_bf16(const Bf16Product& p, void* workspace, base::ThreadPool& pool) {
  base::check(has_bf16_products(), "bf16 products on a processor without them");
  base::check(p.packed_b == nullptr || p.column_sums == nullptr, "column sums of packed columns");
  if (p.m == 0 || p.n == 0 || p.k == 0) return;
  const Layout layout = lay_out(p, bf16_kernels()->tiles, pool.size());
  const Bf16Worker worker(p, layout);
  char* lanes = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(workspace) + 63) & ~uintptr_t{63});
  const int64_t tasks = layout.grid.m_blocks * layout.grid.n_blocks;
  std::atomic<int64_t> next{0};
  pool.run(std::min<int64_t>(tasks, pool.size()), [&](int64_t lane) {
    char* memory = lanes + static_cast<size_t>(lane) * layout.lane_bytes;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) worker.run(i, memory);
  });
}

}  // namespace trireme::cpu
