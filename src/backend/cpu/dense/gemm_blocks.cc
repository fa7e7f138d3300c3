// Cuts a product into tasks; each packs a block of b, then tile after tile of a, and calls the register
// tiles.
#include "backend/cpu/dense/gemm_blocks.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "backend/cpu/dense/gemm_blocks_plan.h"
#include "backend/cpu/device/round_up.h"

namespace trireme::cpu {
namespace {

// A block of b [depth, columns] streams from the third-level cache, a panel of it at a time through the
// first; the tiles of a group [tiles, depth, 16] wait for it in half of a 1 MiB second-level cache.
constexpr int64_t kColumnsBytes = 2 * 1024 * 1024;
constexpr int64_t kMaxDepth = 512;

/// Cycles of one task, roughly: 14 rows take 14 cycles per k and panel; packing a tile and a panel are
/// copies.
double task_cycles(int64_t tiles, int64_t panels, const BlockProduct& p) {
  const double a = p.a.transposed ? 3.0 : 5.0, b = p.b.transposed ? 24.0 : 16.0;
  const double per_k = 14.0 * double(tiles) * double(panels) + a * double(tiles) + b * double(panels);
  return per_k * double(p.k) + 500.0;
}

}  // namespace

BlockGrid plan_blocks(const BlockProduct& p, const DenseKernels& kernels, BlockLimits limits) {
  const int threads = limits.threads;
  BlockGrid g;
  g.tiles = divide_up(p.m, kernels.tile_rows);
  g.panels = divide_up(p.n, kernels.panel);
  g.depth = divide_up(p.k, divide_up(p.k, kMaxDepth));
  const int64_t panel_bytes = g.depth * kernels.panel * static_cast<int64_t>(sizeof(float));
  const int64_t most = std::clamp<int64_t>(kColumnsBytes / panel_bytes, 1, g.panels);
  const int64_t batches = p.outer * p.inner;
  const int64_t least = divide_up(g.panels, most), enough = 8 * threads;
  const int64_t columns = std::min(most, g.panels) * kernels.panel;
  const int64_t least_m =
      limits.task_floats == 0 ? 1 : std::min(g.tiles, divide_up(p.m * columns, limits.task_floats));
  double best = 0;
  // Tasks of few columns are shared evenly, but pack all of a again and write short pieces of rows: worth it
  // where a is a group of tiles at most, and the results are not most of what moves.
  const bool is_low = g.tiles <= kBlockGroupTiles && p.m <= p.k;
  const int64_t finest = std::min(g.panels, is_low ? std::max(least, enough) : least + 2 * threads);
  for (int64_t n_blocks = least; n_blocks <= finest; ++n_blocks) {
    for (int64_t m_blocks = least_m; m_blocks <= g.tiles; ++m_blocks) {
      const int64_t tasks = batches * n_blocks * m_blocks;
      // The last round is rarely shared evenly: 0.3 of a task is lost on average.
      const double rounds = threads == 1
                                ? double(tasks)
                                : std::max(std::ceil(double(tasks) / threads), double(tasks) / threads + 0.3);
      const double cost =
          rounds * task_cycles(divide_up(g.tiles, m_blocks), divide_up(g.panels, n_blocks), p);
      if (best == 0 || cost < best) {
        best = cost;
        g.m_blocks = m_blocks;
        g.n_blocks = n_blocks;
      }
      if (threads == 1 || tasks >= enough) break;
    }
    if (threads == 1) break;
  }
  g.block_panels = divide_up(g.panels, g.n_blocks);
  g.n_blocks = divide_up(g.panels, g.block_panels);
  // Of the largest block, so that the size does not hang on the cost model.
  g.b_bytes = align64(static_cast<size_t>(most * packed_panel(g.depth, kernels.panel)) * sizeof(float));
  const int64_t group = std::min(kBlockGroupTiles, g.tiles);
  g.lane_bytes = g.b_bytes + align64(static_cast<size_t>(group * packed_tile(g.depth)) * sizeof(float));
  return g;
}

namespace {

/// One task: tiles x panels of one batch.
struct BlockTask {
  const float *a, *b;
  float* c;
  int64_t first_tile, last_tile, first_panel, last_panel;
  bool sums_rows, sums_columns;
};

class BlockWorker {
 public:
  BlockWorker(const BlockProduct& p, const BlockGrid& g)
      : p_(p), g_(g), kernels_(dense_kernels(p.isa)), height_(p.m / g.tiles), tall_(p.m - height_ * g.tiles) {
    clamps_ = clamp_bounds(p.epilogue, prototype_.lo, prototype_.hi);
    prototype_.ldc = p.ldc;
    prototype_.act_before_residual = p.epilogue.act_before_residual;
    prototype_.clamps_low = clamps_ && p.epilogue.act != Activation::none;
    prototype_.clamps_high = prototype_.clamps_low && p.epilogue.act != Activation::relu;
  }

  void run(int64_t index, char* lane) const {
    const BlockTask t = task(index);
    float* b = reinterpret_cast<float*>(lane);
    float* a = reinterpret_cast<float*>(lane + g_.b_bytes);
    for (int64_t k0 = 0; k0 < p_.k; k0 += g_.depth) {
      const int64_t depth = std::min(g_.depth, p_.k - k0);
      GemmTile call = prototype_;
      call.k = depth;
      call.accumulate = call.adds_last = k0 > 0;
      call.finish = k0 + depth == p_.k;
      pack_columns(t, k0, depth, b);
      for (int64_t first = t.first_tile; first < t.last_tile; first += kBlockGroupTiles) {
        const int64_t last = std::min(first + kBlockGroupTiles, t.last_tile);
        pack_rows(t, {first, last}, k0, depth, a);
        multiply(t, {first, last}, a, b, call);
      }
    }
  }

 private:
  int64_t tile_begin(int64_t tile) const { return tile * height_ + std::min(tile, tall_); }

  BlockTask task(int64_t index) const {
    const int64_t nb = index % g_.n_blocks, mb = index / g_.n_blocks % g_.m_blocks;
    const int64_t batch = index / g_.n_blocks / g_.m_blocks;
    const int64_t outer = batch / p_.inner, inner = batch % p_.inner;
    return {p_.a.data + outer * p_.a.outer + inner * p_.a.inner,
            p_.b.data + outer * p_.b.outer + inner * p_.b.inner,
            p_.c + outer * p_.c_outer + inner * p_.c_inner,
            g_.tiles * mb / g_.m_blocks,
            g_.tiles * (mb + 1) / g_.m_blocks,
            nb * g_.block_panels,
            std::min(g_.panels, (nb + 1) * g_.block_panels),
            nb == 0 && p_.row_sums != nullptr,
            mb == 0 && p_.column_sums != nullptr};
  }

  /// Floats across the panel that starts at `column`.
  int panel_width(int64_t column) const {
    return p_.n - column > kernels_.width ? kernels_.panel : kernels_.width;
  }

  /// b[k0 .. k0 + depth, panels of the task] -> [panel][k][width], zeros beyond the last column.
  void pack_columns(const BlockTask& t, int64_t k0, int64_t depth, float* out) const {
    int64_t panel = t.first_panel;
    if (!p_.b.transposed) panel += pack_whole_panels(t, k0, depth, out);
    float* to = out + (panel - t.first_panel) * packed_panel(depth, kernels_.panel);
    for (; panel < t.last_panel; ++panel) {
      const int64_t column = panel * kernels_.panel;
      const int width = panel_width(column);
      const int valid = static_cast<int>(std::min<int64_t>(width, p_.n - column));
      if (p_.b.transposed) {
        pack_across(t.b + column * p_.b.ld + k0, valid, width, depth, to);
      } else {
        pack_along(t.b + k0 * p_.b.ld + column, valid, width, depth, to);
      }
      to += packed_panel(depth, width);
    }
    if (!t.sums_columns) return;
    for (panel = t.first_panel; panel < t.last_panel; ++panel) {
      const int64_t column = panel * kernels_.panel;
      const int width = panel_width(column);
      const int valid = static_cast<int>(std::min<int64_t>(width, p_.n - column));
      add_sums({out, width, depth}, valid, p_.column_sums + column, k0 > 0);
      out += packed_panel(depth, width);
    }
  }

  /// Whole panels of columns that lie side by side, row by row, so that every page is opened once. Returns
  /// how many panels it packed.
  int64_t pack_whole_panels(const BlockTask& t, int64_t k0, int64_t depth, float* out) const {
    const int64_t width = kernels_.panel, column = t.first_panel * width;
    const int64_t panels = std::min(t.last_panel - t.first_panel, (p_.n - column) / width);
    const float* from = t.b + k0 * p_.b.ld + column;
    for (int64_t k = 0; k < depth; ++k, from += p_.b.ld, out += width) {
      for (int64_t panel = 0; panel < panels; ++panel) {
        const float* piece = from + panel * width;
        float* to = out + panel * packed_panel(depth, kernels_.panel);
        if (width == 32) {
          std::memcpy(to, piece, 32 * sizeof(float));
        } else {
          std::memcpy(to, piece, static_cast<size_t>(width) * sizeof(float));
        }
      }
    }
    return panels;
  }

  /// The last columns: rows are copied, missing columns are 0.
  void pack_along(const float* from, int valid, int width, int64_t depth, float* out) const {
    for (int64_t k = 0; k < depth; ++k, from += p_.b.ld, out += width) {
      for (int j = 0; j < valid; ++j) out[j] = from[j];
      for (int j = valid; j < width; ++j) out[j] = 0.0f;
    }
  }

  /// Each column lies along k: vectors of columns go through the register transpose. Missing columns repeat
  /// the first; their products are never stored.
  void pack_across(const float* from, int valid, int width, int64_t depth, float* out) const {
    const float* columns[kRowSlots];
    for (int j0 = 0; j0 < width; j0 += kernels_.width) {
      for (int j = 0; j < kernels_.width; ++j) columns[j] = from + (j0 + j < valid ? j0 + j : 0) * p_.b.ld;
      kernels_.transpose(columns, depth, out + j0, width);
    }
  }

  /// a[rows of the tiles, k0 .. k0 + depth] -> [tile][k][kRowSlots].
  void pack_rows(const BlockTask& t, BlockTiles tiles, int64_t k0, int64_t depth, float* out) const {
    const int64_t each = packed_tile(depth);
    if (p_.a.transposed) {
      const float* from = t.a + k0 * p_.a.ld;
      for (int64_t k = 0; k < depth; ++k, from += p_.a.ld) {
        float* to = out + k * kRowSlots;
        for (int64_t tile = tiles.first; tile < tiles.last; ++tile, to += each) {
          const int64_t row = tile_begin(tile);
          if (row + kRowSlots <= p_.m) {
            std::memcpy(to, from + row, kRowSlots * sizeof(float));
          } else {
            for (int64_t r = 0; r < tile_begin(tile + 1) - row; ++r) to[r] = from[row + r];
          }
        }
      }
    } else {
      for (int64_t tile = tiles.first; tile < tiles.last; ++tile) {
        const int64_t row = tile_begin(tile), rows = tile_begin(tile + 1) - row;
        const float* start[kRowSlots];
        for (int r = 0; r < kRowSlots; ++r) start[r] = t.a + (row + (r < rows ? r : 0)) * p_.a.ld + k0;
        kernels_.transpose(start, depth, out + (tile - tiles.first) * each, kRowSlots);
      }
    }
    if (!t.sums_rows) return;
    for (int64_t tile = tiles.first; tile < tiles.last; ++tile, out += each) {
      const int64_t row = tile_begin(tile);
      add_sums({out, kRowSlots, depth}, static_cast<int>(tile_begin(tile + 1) - row), p_.row_sums + row,
               k0 > 0);
    }
  }

  /// sums[j] (+)= sum over k of packed[k][j]: one chain per block of depth.
  static void add_sums(const PackedBlock& block, int valid, float* sums, bool accumulate) {
    const auto [packed, width, depth] = block;
    float total[32] = {};
    for (int64_t k = 0; k < depth; ++k) {
      for (int j = 0; j < width; ++j) total[j] += packed[k * width + j];
    }
    for (int j = 0; j < valid; ++j) sums[j] = accumulate ? sums[j] + total[j] : total[j];
  }

  /// A panel of b stays in the first-level cache while the tiles of the group pass by.
  void multiply(const BlockTask& t, BlockTiles tiles, const float* a, const float* b, GemmTile& call) const {
    for (int64_t panel = t.first_panel; panel < t.last_panel; ++panel) {
      const int64_t column = panel * kernels_.panel;
      const int width = panel_width(column);
      call.n = static_cast<int>(std::min<int64_t>(width, p_.n - column));
      call.b = b;
      b += packed_panel(call.k, width);
      call.a = a;
      for (int64_t tile = tiles.first; tile < tiles.last; ++tile, call.a += packed_tile(call.k))
        run_tile(t, tile, column, width, call);
    }
  }

  void run_tile(const BlockTask& t, int64_t tile, int64_t column, int width, GemmTile& call) const {
    const int64_t row = tile_begin(tile);
    const int rows = static_cast<int>(tile_begin(tile + 1) - row);
    const Epilogue& e = p_.epilogue;
    const bool later = !clamps_ && call.finish;
    call.c = t.c + row * p_.ldc + column;
    call.bias = e.bias != nullptr && !call.accumulate ? e.bias + column : nullptr;
    const float* residual = e.residual != nullptr ? e.residual + row * p_.ldc + column : nullptr;
    call.residual = later && e.act_before_residual ? nullptr : residual;
    kernels_.gemm_packed[width / kernels_.width - 1][rows - 1](call);
    // A curved activation runs over the finished tile while it is in the first-level cache.
    if (later)
      kernels_.activate({call.c, p_.ldc, rows, call.n, e.act_before_residual ? residual : nullptr}, e);
  }

  const BlockProduct& p_;
  const BlockGrid& g_;
  const DenseKernels& kernels_;
  int64_t height_, tall_;  // the first tall_ tiles have height_ + 1 rows
  GemmTile prototype_;     // what all tiles share
  bool clamps_ = true;
};

// Products of few results and many blocks of depth: more than this many floats of sums are not held apart.
constexpr int64_t kMostResults = 16 * 1024, kMostApart = 1024 * 1024;

/// A product whose blocks of depth are multiplied apart, for a team that its results are too few for: each
/// member packs its own blocks once, where tasks of rows and columns would each pack the same operand.
struct DeepPlan {
  int64_t blocks = 0;  // 0: not worth it
  BlockGrid grid;      // of one block, as one task
};

DeepPlan plan_deep(const BlockProduct& p, int threads) {
  const bool is_plain = p.outer * p.inner == 1 && p.epilogue.residual == nullptr && p.row_sums == nullptr &&
                        p.column_sums == nullptr;
  float lo, hi;
  const int64_t blocks = divide_up(p.k, kMaxDepth);
  if (threads == 1 || !is_plain || !clamp_bounds(p.epilogue, lo, hi) || blocks < 2 * threads ||
      p.m * p.n > kMostResults || p.m * p.n * blocks > kMostApart)
    return {};
  BlockProduct one = p;
  one.k = divide_up(p.k, blocks);
  DeepPlan plan{blocks, plan_blocks(one, dense_kernels(p.isa), {.threads = 1})};
  if (plan.grid.m_blocks * plan.grid.n_blocks != 1) return {};
  return plan;
}

size_t deep_bytes(const BlockProduct& p, const DeepPlan& plan, int threads) {
  return static_cast<size_t>(threads) * plan.grid.lane_bytes +
         align64(static_cast<size_t>(plan.blocks * p.m * p.n) * sizeof(float)) + 64;
}

/// Block `index` of the depth as a product of its own: the bias goes with the first, the activation with
/// none.
BlockProduct depth_block(const BlockProduct& p, const DeepPlan& plan, int64_t index, float* parts) {
  BlockProduct one = p;
  const int64_t k0 = index * plan.grid.depth;
  one.k = std::min(plan.grid.depth, p.k - k0);
  one.a.data += p.a.transposed ? k0 * p.a.ld : k0;
  one.b.data += p.b.transposed ? k0 : k0 * p.b.ld;
  one.c = parts + index * p.m * p.n;
  one.ldc = p.n;
  one.epilogue = {};
  if (index == 0) one.epilogue.bias = p.epilogue.bias;
  return one;
}

/// c = activation of the blocks' sums of rows [begin, end), added as one task would add them.
void add_blocks(const BlockProduct& p, const DeepPlan& plan, float* parts, BlockTiles rows) {
  float lo, hi;
  const bool clamps = clamp_bounds(p.epilogue, lo, hi) && p.epilogue.act != Activation::none;
  for (int64_t r = rows.first; r < rows.last; ++r) {
    float* sum = parts + r * p.n;
    for (int64_t i = 1; i < plan.blocks; ++i) {
      const float* part = sum + i * p.m * p.n;
      for (int64_t j = 0; j < p.n; ++j) sum[j] += part[j];
    }
    float* c = p.c + r * p.ldc;
    for (int64_t j = 0; j < p.n; ++j) {
      // Comparisons that keep NaN, as the register tiles' do.
      const float above = lo > sum[j] ? lo : sum[j], inside = hi < above ? hi : above;
      c[j] = clamps ? inside : sum[j];
    }
  }
}

void multiply_deep(const BlockProduct& p, const DeepPlan& plan, char* memory, base::ThreadPool& pool) {
  float* parts = reinterpret_cast<float*>(memory);
  char* lanes = memory + align64(static_cast<size_t>(plan.blocks * p.m * p.n) * sizeof(float));
  std::atomic<int64_t> next{0};
  pool.run(std::min<int64_t>(plan.blocks, pool.size()), [&](int64_t lane) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < plan.blocks;) {
      const BlockProduct one = depth_block(p, plan, i, parts);
      BlockWorker(one, plan.grid).run(0, lanes + static_cast<size_t>(lane) * plan.grid.lane_bytes);
    }
  });
  pool.for_range(p.m, 8, [&](int64_t begin, int64_t end) { add_blocks(p, plan, parts, {begin, end}); });
}

}  // namespace

size_t gemm_blocks_workspace_bytes(const BlockProduct& p, int threads) {
  if (p.m == 0 || p.n == 0 || p.k == 0) return 0;
  const DeepPlan deep = plan_deep(p, threads);
  if (deep.blocks > 0) return deep_bytes(p, deep, threads);
  return static_cast<size_t>(threads) *
             plan_blocks(p, dense_kernels(p.isa), {.threads = threads}).lane_bytes +
         64;
}

void gemm_blocks(const BlockProduct& p, void* workspace, base::ThreadPool& pool) {
  if (p.m == 0 || p.n == 0 || p.k == 0) return;
  char* lanes = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(workspace) + 63) & ~uintptr_t{63});
  const DeepPlan deep = plan_deep(p, pool.size());
  if (deep.blocks > 0) return multiply_deep(p, deep, lanes, pool);
  const BlockGrid g = plan_blocks(p, dense_kernels(p.isa), {.threads = pool.size()});
  const BlockWorker worker(p, g);
  const int64_t tasks = p.outer * p.inner * g.m_blocks * g.n_blocks;
  std::atomic<int64_t> next{0};
  // A lane owns one piece of workspace and takes tasks until none is left.
  pool.run(std::min<int64_t>(tasks, pool.size()), [&](int64_t lane) {
    char* memory = lanes + static_cast<size_t>(lane) * g.lane_bytes;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) worker.run(i, memory);
  });
}

}  // namespace trireme::cpu
