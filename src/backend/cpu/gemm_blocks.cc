// Cuts a product into tasks; each packs a block of b, then tile after tile of a, and calls the register
// tiles.
#include "backend/cpu/gemm_blocks.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "backend/cpu/dense_kernels.h"

namespace trireme::cpu {
namespace {

// A block of b stays in half of a 1 MiB second-level cache, beside the tiles of a and c that stream by.
constexpr int64_t kBlockBytes = 512 * 1024;
constexpr int64_t kMaxDepth = 512;  // a tile of a [depth, 16] is 32 KiB: it stays in the first-level cache

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
size_t align64(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

/// Tasks are batches x m_blocks x n_blocks; tiles of nearly equal height.
struct Grid {
  int64_t tiles = 1, panels = 1, depth = 0;  // depth: of one packed block
  int64_t m_blocks = 1, n_blocks = 1, block_panels = 1;
  size_t b_bytes = 0, lane_bytes = 0;
};

/// Cycles of one task, roughly: 14 rows take 14 cycles per k and panel; packing a tile and a panel are
/// copies.
double task_cycles(int64_t tiles, int64_t panels, const BlockProduct& p) {
  const double a = p.a.transposed ? 3.0 : 5.0, b = p.b.transposed ? 24.0 : 16.0;
  const double per_k = 14.0 * double(tiles) * double(panels) + a * double(tiles) + b * double(panels);
  return per_k * double(p.k) + 500.0;
}

Grid plan(const BlockProduct& p, const DenseKernels& kernels, int threads) {
  Grid g;
  g.tiles = divide_up(p.m, kernels.tile_rows);
  g.panels = divide_up(p.n, kernels.panel);
  g.depth = divide_up(p.k, divide_up(p.k, kMaxDepth));
  const int64_t panel_bytes = g.depth * kernels.panel * static_cast<int64_t>(sizeof(float));
  const int64_t most = std::clamp<int64_t>(kBlockBytes / panel_bytes, 1, g.panels);
  const int64_t batches = p.outer * p.inner;
  double best = 0;
  for (int64_t width = most; width >= 1; --width) {
    const int64_t n_blocks = divide_up(g.panels, width);
    for (int64_t m_blocks = 1; m_blocks <= std::min<int64_t>(g.tiles, 4 * threads); ++m_blocks) {
      const int64_t tasks = batches * n_blocks * m_blocks;
      // A round that is not full leaves threads idle; with several rounds they even out.
      const double rounds = threads == 1 ? double(tasks) : std::max(1.0, double(tasks) / threads + 0.5);
      const double cost = (tasks <= threads ? 1.0 : rounds) *
                          task_cycles(divide_up(g.tiles, m_blocks), divide_up(g.panels, n_blocks), p);
      if (best == 0 || cost < best) {
        best = cost;
        g.m_blocks = m_blocks;
        g.n_blocks = n_blocks;
      }
      if (threads == 1) break;
    }
  }
  g.block_panels = divide_up(g.panels, g.n_blocks);
  g.n_blocks = divide_up(g.panels, g.block_panels);
  // Of the largest block, so that the size does not hang on the cost model.
  g.b_bytes = align64(static_cast<size_t>(most * panel_bytes));
  g.lane_bytes = g.b_bytes + align64(static_cast<size_t>(g.depth) * kRowSlots * sizeof(float));
  return g;
}

/// One task: tiles x panels of one batch.
struct Task {
  const float *a, *b;
  float* c;
  int64_t first_tile, last_tile, first_panel, last_panel;
  bool sums_rows, sums_columns;
};

class Worker {
 public:
  Worker(const BlockProduct& p, const Grid& g)
      : p_(p), g_(g), kernels_(dense_kernels(p.isa)), height_(p.m / g.tiles), tall_(p.m - height_ * g.tiles) {
    clamps_ = clamp_bounds(p.epilogue, prototype_.lo, prototype_.hi);
    prototype_.ldc = p.ldc;
    prototype_.act_before_residual = p.epilogue.act_before_residual;
    prototype_.clamps_low = clamps_ && p.epilogue.act != Activation::none;
    prototype_.clamps_high = prototype_.clamps_low && p.epilogue.act != Activation::relu;
  }

  void run(int64_t index, char* lane) const {
    const Task t = task(index);
    float* b = reinterpret_cast<float*>(lane);
    float* a = reinterpret_cast<float*>(lane + g_.b_bytes);
    for (int64_t k0 = 0; k0 < p_.k; k0 += g_.depth) {
      const int64_t depth = std::min(g_.depth, p_.k - k0);
      pack_columns(t, k0, depth, b);
      for (int64_t tile = t.first_tile; tile < t.last_tile; ++tile) {
        pack_rows(t, tile, k0, depth, a);
        GemmTile call = prototype_;
        call.a = a;
        call.k = depth;
        call.accumulate = k0 > 0;
        call.finish = k0 + depth == p_.k;
        multiply(t, tile, b, call);
      }
    }
  }

 private:
  int64_t tile_begin(int64_t tile) const { return tile * height_ + std::min(tile, tall_); }

  Task task(int64_t index) const {
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
  void pack_columns(const Task& t, int64_t k0, int64_t depth, float* out) const {
    for (int64_t panel = t.first_panel; panel < t.last_panel; ++panel) {
      const int64_t column = panel * kernels_.panel;
      const int width = panel_width(column);
      const int valid = static_cast<int>(std::min<int64_t>(width, p_.n - column));
      if (p_.b.transposed) {
        pack_across(t.b + column * p_.b.ld + k0, valid, width, depth, out);
      } else {
        pack_along(t.b + k0 * p_.b.ld + column, valid, width, depth, out);
      }
      if (t.sums_columns) add_sums(out, width, valid, depth, p_.column_sums + column, k0 > 0);
      out += depth * width;
    }
  }

  /// Columns lie side by side: rows are copied.
  void pack_along(const float* from, int valid, int width, int64_t depth, float* out) const {
    if (valid == 32 && width == 32) {
      for (int64_t k = 0; k < depth; ++k, from += p_.b.ld, out += 32) {
        __builtin_prefetch(from + 8 * p_.b.ld);
        __builtin_prefetch(from + 8 * p_.b.ld + 16);
        std::memcpy(out, from, 32 * sizeof(float));
      }
      return;
    }
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

  /// a[rows of the tile, k0 .. k0 + depth] -> [k][kRowSlots].
  void pack_rows(const Task& t, int64_t tile, int64_t k0, int64_t depth, float* out) const {
    const int64_t row = tile_begin(tile);
    const int rows = static_cast<int>(tile_begin(tile + 1) - row);
    if (!p_.a.transposed) {
      const float* start[kRowSlots];
      for (int r = 0; r < kRowSlots; ++r) start[r] = t.a + (row + (r < rows ? r : 0)) * p_.a.ld + k0;
      kernels_.transpose(start, depth, out, kRowSlots);
    } else {
      const float* from = t.a + k0 * p_.a.ld + row;
      const bool whole = row + kRowSlots <= p_.m;
      for (int64_t k = 0; k < depth; ++k, from += p_.a.ld) {
        float* to = out + k * kRowSlots;
        if (whole) {
          __builtin_prefetch(from + 8 * p_.a.ld);
          std::memcpy(to, from, kRowSlots * sizeof(float));
        } else {
          for (int r = 0; r < rows; ++r) to[r] = from[r];
        }
      }
    }
    if (t.sums_rows) add_sums(out, kRowSlots, rows, depth, p_.row_sums + row, k0 > 0);
  }

  /// sums[j] (+)= sum over k of packed[k][j]: one chain per block of depth.
  static void add_sums(const float* packed, int width, int valid, int64_t depth, float* sums,
                       bool accumulate) {
    float total[32] = {};
    for (int64_t k = 0; k < depth; ++k, packed += width) {
      for (int j = 0; j < width; ++j) total[j] += packed[j];
    }
    for (int j = 0; j < valid; ++j) sums[j] = accumulate ? sums[j] + total[j] : total[j];
  }

  void multiply(const Task& t, int64_t tile, const float* b, GemmTile& call) const {
    const int64_t row = tile_begin(tile);
    const int rows = static_cast<int>(tile_begin(tile + 1) - row);
    const Epilogue& e = p_.epilogue;
    const bool later = !clamps_ && call.finish;
    for (int64_t panel = t.first_panel; panel < t.last_panel; ++panel) {
      const int64_t column = panel * kernels_.panel;
      const int width = panel_width(column);
      call.n = static_cast<int>(std::min<int64_t>(width, p_.n - column));
      call.b = b;
      b += call.k * width;
      call.c = t.c + row * p_.ldc + column;
      call.bias = e.bias != nullptr && !call.accumulate ? e.bias + column : nullptr;
      const float* residual = e.residual != nullptr ? e.residual + row * p_.ldc + column : nullptr;
      call.residual = later && e.act_before_residual ? nullptr : residual;
      kernels_.gemm_packed[width / kernels_.width - 1][rows - 1](call);
      // A curved activation runs over the finished tile while it is in the first-level cache.
      if (later)
        kernels_.activate({call.c, p_.ldc, rows, call.n, e.act_before_residual ? residual : nullptr}, e);
    }
  }

  const BlockProduct& p_;
  const Grid& g_;
  const DenseKernels& kernels_;
  int64_t height_, tall_;  // the first tall_ tiles have height_ + 1 rows
  GemmTile prototype_;     // what all tiles share
  bool clamps_ = true;
};

}  // namespace

size_t gemm_blocks_workspace_bytes(const BlockProduct& p, int threads) {
  if (p.m == 0 || p.n == 0 || p.k == 0) return 0;
  return static_cast<size_t>(threads) * plan(p, dense_kernels(p.isa), threads).lane_bytes + 64;
}

void gemm_blocks(const BlockProduct& p, void* workspace, base::ThreadPool& pool) {
  if (p.m == 0 || p.n == 0 || p.k == 0) return;
  const Grid g = plan(p, dense_kernels(p.isa), pool.size());
  const Worker worker(p, g);
  char* lanes = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(workspace) + 63) & ~uintptr_t{63});
  const int64_t tasks = p.outer * p.inner * g.m_blocks * g.n_blocks;
  std::atomic<int64_t> next{0};
  // A lane owns one piece of workspace and takes tasks until none is left.
  pool.run(std::min<int64_t>(tasks, pool.size()), [&](int64_t lane) {
    char* memory = lanes + static_cast<size_t>(lane) * g.lane_bytes;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) worker.run(i, memory);
  });
}

}  // namespace trireme::cpu
