// Cuts a product into tasks and register tiles, gathers the activations of each block, and calls the tile
// kernels.
#include "backend/cpu/dense/gemm_driver.h"

#include <algorithm>

#include "backend/cpu/dense/gemm_rows.h"
#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/device/round_up.h"

namespace trireme::cpu {
namespace {

// The activation block of a task should stay in half of a 1 MiB second-level cache beside the streaming
// weights.
constexpr int64_t kRowsBytes = 384 * 1024;

/// What an operand's element costs besides its multiply-adds, in multiply-adds of one core for each unit of
/// depth. Rows that a member keeps lie in its own cache; rows that several gather come from the cache of
/// another.
constexpr double kOwnRow = 10, kSharedRow = 24, kWeight = 3;

/// Least of (rounds over the team) x (work of a task) plus what re-reading operands costs; fills in the grid.
void choose_grid(GemmPlan& plan, int64_t max_block_tiles, int64_t m, int64_t n, int threads) {
  const int64_t least_m_blocks =
      std::max<int64_t>(1, divide_up(plan.tiles, std::max<int64_t>(1, max_block_tiles)));
  double best = 0;
  for (int64_t n_blocks = 1; n_blocks <= plan.panels; n_blocks = n_blocks < 8 ? n_blocks + 1 : n_blocks * 2) {
    const int64_t block_panels = divide_up(plan.panels, n_blocks);
    for (int64_t m_blocks = least_m_blocks; m_blocks <= plan.tiles;
         m_blocks = m_blocks < 16 ? m_blocks + 1 : m_blocks + m_blocks / 4) {
      const int64_t block_tiles = divide_up(plan.tiles, m_blocks);
      const double rounds = static_cast<double>(divide_up(m_blocks * n_blocks, threads));
      // The last round is rarely shared evenly: 0.3 of a task is lost on average, which favours smaller
      // tasks.
      const double work = (rounds + (threads > 1 ? 0.3 : 0.0)) *
                          static_cast<double>(block_tiles * block_panels) *
                          static_cast<double>(plan.tile_rows * 32);
      const double row = n_blocks == 1 ? kOwnRow : kSharedRow;
      const double reread =
          (row * static_cast<double>(m * n_blocks) + kWeight * static_cast<double>(n * m_blocks)) / threads;
      const double overhead = 300.0 * rounds;
      const double cost = work + reread + overhead;
      if (best == 0 || cost < best) {
        best = cost;
        plan.n_blocks = divide_up(plan.panels, block_panels);
        plan.block_panels = block_panels;
        plan.m_blocks = m_blocks;
        plan.block_tiles = block_tiles;
      }
      if (threads == 1 || m_blocks * n_blocks >= 16 * threads) break;
    }
    if (threads == 1) break;
  }
}

int64_t most_block_tiles(int64_t chunk) {
  return std::clamp<int64_t>(kRowsBytes / (chunk * kRowSlots * static_cast<int64_t>(sizeof(float))), 1, 64);
}

/// One pass of one task: these tiles x these panels over depth [k0, k1).
struct Pass {
  int64_t first_tile, last_tile;
  int64_t first_panel, last_panel;
  int64_t k0, k1;
};

class Runner {
 public:
  Runner(const GemmJob& job, const GemmPlan& plan)
      : job_(job), plan_(plan), kernels_(dense_kernels(job.b.isa)), depth_(job.source.depth()) {
    clamps_ = clamp_bounds(job.epilogue, prototype_.lo, prototype_.hi);
    prototype_.ldc = job.ldc;
    prototype_.act_before_residual = job.epilogue.act_before_residual;
    prototype_.clamps_low = clamps_ && job.epilogue.act != Activation::none;
    prototype_.clamps_high = prototype_.clamps_low && job.epilogue.act != Activation::relu;
    prototype_.panel_stride = kernels_.panel * job.b.k;
  }

  void task(int64_t index, char* lane) const {
    const int64_t mb = index / plan_.n_blocks;
    const int64_t nb = index % plan_.n_blocks;
    Pass pass;
    pass.first_tile = plan_.tiles * mb / plan_.m_blocks;
    pass.last_tile = plan_.tiles * (mb + 1) / plan_.m_blocks;
    pass.first_panel = nb * plan_.block_panels;
    pass.last_panel = std::min(plan_.panels, pass.first_panel + plan_.block_panels);
    for (pass.k0 = 0; pass.k0 < depth_ || depth_ == 0; pass.k0 = pass.k1) {
      pass.k1 = std::min(depth_, pass.k0 + plan_.chunk);
      if (plan_.tiles_outside) {
        // The weights of the task stay in the second-level cache; each tile is gathered once and its output
        // rows are written whole.
        Pass one = pass;
        for (int64_t t = pass.first_tile; t < pass.last_tile; ++t) {
          one.first_tile = t;
          one.last_tile = t + 1;
          gather(one, lane);
          if (t + 1 < pass.last_tile) fetch_rows(t + 1, pass);
          multiply(one, lane);
        }
      } else {
        gather(pass, lane);
        multiply(pass, lane);
      }
      if (pass.k1 == depth_) break;
    }
  }

 private:
  void gather(const Pass& pass, char* lane) const {
    if (plan_.packed) {
      pack(pass, reinterpret_cast<float*>(lane));
    } else {
      point(pass, lane);
    }
  }

  int64_t tile_begin(int64_t tile) const { return plan_.tile_begin(tile); }

  /// Calls piece(tap, offset, length) for each run that depth [k0, k1) touches.
  template <class Piece>
  void for_pieces(const Pass& pass, const Piece& piece) const {
    const int64_t run = job_.source.run;
    for (int64_t k = pass.k0; k < pass.k1;) {
      const int64_t offset = k % run;
      const int64_t length = std::min(run - offset, pass.k1 - k);
      piece(k / run, offset, length);
      k += length;
    }
  }

  /// Asks for the rows of a tile that is gathered next: its rows are short runs that the processor does not
  /// foresee.
  void fetch_rows(int64_t tile, const Pass& pass) const {
    if (job_.source.spatial) return;
    const int64_t begin = tile_begin(tile), end = tile_begin(tile + 1);
    const char* row = job_.source.base + begin * job_.source.row_stride + pass.k0 * 4;
    const int64_t bytes = (pass.k1 - pass.k0) * 4;
    for (int64_t r = begin; r < end; ++r, row += job_.source.row_stride) {
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
    }
  }

  /// Transposes the activations of the pass to [tile][k][kRowSlots].
  void pack(const Pass& pass, float* out) const {
    for (int64_t t = pass.first_tile; t < pass.last_tile; ++t) {
      const int64_t begin = tile_begin(t);
      const TileRows rows(job_.source, begin, static_cast<int>(tile_begin(t + 1) - begin));
      if (t + 1 < pass.last_tile) fetch_rows(t + 1, pass);
      for_pieces(pass, [&](int64_t tap, int64_t offset, int64_t length) {
        const float* start[kRowSlots];
        rows.tap(tap, offset * static_cast<int64_t>(sizeof(float)), start);
        kernels_.transpose(start, length, out, kRowSlots);
        out += length * kRowSlots;
      });
    }
  }

  /// Writes the lengths of the pieces and, per tile, the row pointers [tile][segment][kRowSlots].
  void point(const Pass& pass, char* lane) const {
    int32_t* lengths = reinterpret_cast<int32_t*>(lane);
    if (!job_.source.spatial) {
      // The common case, small products, must not pay for the general one.
      lengths[0] = static_cast<int32_t>(pass.k1 - pass.k0);
      const float** row = pointers(lane);
      for (int64_t t = pass.first_tile; t < pass.last_tile; ++t, row += plan_.segments * kRowSlots) {
        const int64_t begin = tile_begin(t);
        const char* start = job_.source.base + begin * job_.source.row_stride + pass.k0 * 4;
        const int64_t rows = tile_begin(t + 1) - begin;
        for (int64_t r = 0; r < rows; ++r, start += job_.source.row_stride) {
          row[r] = reinterpret_cast<const float*>(start);
        }
      }
      return;
    }
    int64_t count = 0;
    for_pieces(pass,
               [&](int64_t, int64_t, int64_t length) { lengths[count++] = static_cast<int32_t>(length); });
    const float** out = pointers(lane);
    for (int64_t t = pass.first_tile; t < pass.last_tile; ++t) {
      const int64_t begin = tile_begin(t);
      const TileRows rows(job_.source, begin, static_cast<int>(tile_begin(t + 1) - begin));
      int64_t s = 0;
      for_pieces(pass, [&](int64_t tap, int64_t offset, int64_t) {
        rows.tap(tap, offset * static_cast<int64_t>(sizeof(float)), out + s++ * kRowSlots);
      });
      out += plan_.segments * kRowSlots;
    }
  }

  /// Runs that the pass touches.
  int segments(const Pass& pass) const {
    if (!job_.source.spatial) return 1;
    int count = 0;
    for_pieces(pass, [&](int64_t, int64_t, int64_t) { ++count; });
    return count;
  }

  const float** pointers(char* lane) const {
    return reinterpret_cast<const float**>(lane +
                                           align64(static_cast<size_t>(plan_.segments) * sizeof(int32_t)));
  }

  void multiply(const Pass& pass, char* lane) const {
    GemmTile tile = prototype_;
    tile.k = pass.k1 - pass.k0;
    tile.accumulate = pass.k0 > 0 || job_.accumulates;
    tile.finish = pass.k1 == depth_ && job_.finishes;
    tile.lengths = reinterpret_cast<const int32_t*>(lane);
    tile.segments = plan_.packed ? 0 : segments(pass);
    const bool few = !plan_.packed && plan_.tile_rows <= kernels_.wide_rows;
    int64_t step = 1;
    for (int64_t p = pass.first_panel; p < pass.last_panel; p += step) {
      const int64_t column = p * kernels_.panel;
      const int64_t left = job_.b.n - column;
      step = few && p + 4 <= pass.last_panel && left >= 4 * kernels_.panel ? 4 : 1;
      tile.n = static_cast<int>(std::min<int64_t>(left, step * kernels_.panel));
      const int vectors = step == 4 ? 8 : left > kernels_.width ? 2 : 1;
      tile.b =
          job_.b.data + column * job_.b.k + (job_.first_k + pass.k0) * std::min(vectors, 2) * kernels_.width;
      tile.bias = job_.epilogue.bias && !tile.accumulate ? job_.epilogue.bias + column : nullptr;
      const float* next = next_weights(pass, p + step);
      const bool fresh = p == pass.first_panel && !(job_.asked && pass.k0 == 0 && p == 0);
      for (int64_t t = pass.first_tile; t < pass.last_tile; ++t) {
        ask_for(next, tile, t - pass.first_tile - (fresh ? 1 : 0),
                pass.last_tile - pass.first_tile - (fresh ? 1 : 0));
        const int64_t begin = tile_begin(t);
        const int rows = static_cast<int>(tile_begin(t + 1) - begin);
        const int64_t slot = t - pass.first_tile;
        if (plan_.packed) {
          tile.a = reinterpret_cast<const float*>(lane) + slot * tile.k * kRowSlots;
        } else {
          tile.rows = pointers(lane) + slot * plan_.segments * kRowSlots;
        }
        finish_tile(tile, begin, rows, column, vectors);
      }
    }
  }

  /// Where the panel that follows begins, within the pass, in the next, or in the next product; null:
  /// nowhere.
  const float* next_weights(const Pass& pass, int64_t panel) const {
    int64_t k = pass.k0;
    if (panel >= pass.last_panel) {
      if (pass.k1 == depth_) return pass.last_panel == plan_.panels ? job_.next : nullptr;
      panel = pass.first_panel;
      k = pass.k1;
    }
    const int64_t column = panel * kernels_.panel, left = job_.b.n - column;
    return job_.b.data + column * job_.b.k +
           (job_.first_k + k) * (left > kernels_.width ? kernels_.panel : kernels_.width);
  }

  /// The first two of `tiles` tiles of a panel ask for half of the next panel each, so that it arrives while
  /// all multiply; a single one for all of it. A tile before the first (its own weights were not asked for)
  /// asks ahead.
  void ask_for(const float* next, GemmTile& tile, int64_t index, int64_t tiles) const {
    tile.fetch = nullptr;
    tile.fetch_step = kernels_.panel;
    if (next == nullptr || (index < 0 && tiles > 0)) return;
    tile.fetch = tile.b;
    if (tiles <= 1) {
      tile.fetch = next;
    } else if (index < 2) {
      tile.fetch_step = kernels_.panel / 2;
      tile.fetch = next + index * tile.k * tile.fetch_step;
    }
  }

  void finish_tile(GemmTile& tile, int64_t begin, int rows, int64_t column, int vectors) const {
    const Epilogue& e = job_.epilogue;
    tile.c = job_.c + begin * job_.ldc + column;
    const float* residual = e.residual ? e.residual + begin * job_.ldc + column : nullptr;
    // A curved activation runs over the finished tile while it is in the first-level cache.
    const bool later = !clamps_ && tile.finish;
    tile.residual = later && e.act_before_residual ? nullptr : residual;
    // The sums of a whole product wait beside c, whose lines are then written once.
    alignas(64) float sums[kTileFloats];
    const bool beside = later && !tile.accumulate && tile.residual == nullptr;
    float* const c = tile.c;
    if (beside) {
      tile.c = sums;
      tile.ldc = vectors * kernels_.width;
    }
    if (vectors == 8) {
      kernels_.gemm_wide[rows - 1](tile);
    } else {
      const auto& table = plan_.packed ? kernels_.gemm_packed : kernels_.gemm_rows;
      table[vectors - 1][rows - 1](tile);
    }
    if (later)
      kernels_.activate(
          {c, job_.ldc, rows, tile.n, e.act_before_residual ? residual : nullptr, tile.c, tile.ldc}, e);
    tile.ldc = job_.ldc;
  }

  const GemmJob& job_;
  const GemmPlan& plan_;
  const DenseKernels& kernels_;
  int64_t depth_;
  GemmTile prototype_;  // what all tiles of the job share
  bool clamps_ = true;
};

}  // namespace

GemmPlan plan_gemm(int64_t m, int64_t n, const RowSource& source, const DenseKernels& kernels,
                   PlanLimits limits) {
  const int threads = limits.threads;
  GemmPlan plan;
  const int64_t depth = source.depth();
  plan.tiles = divide_up(m, kernels.tile_rows);
  // A few tiles more, each a little lower, come out even over the team.
  const int64_t even = divide_up(plan.tiles, threads) * threads;
  if (plan.tiles < 8 * threads && 4 * m >= 3 * even * kernels.tile_rows) plan.tiles = even;
  plan.tile_rows = divide_up(m, std::max<int64_t>(1, plan.tiles));
  plan.tile_floor = m / std::max<int64_t>(1, plan.tiles);
  plan.tall = m - plan.tile_floor * plan.tiles;
  plan.panels = divide_up(n, kernels.panel);
  plan.chunk =
      std::max<int64_t>(1, divide_up(depth, divide_up(std::max<int64_t>(depth, 1), limits.max_chunk)));
  // Transposing pays once a row is read for several panels. Row strides that are multiples of 4 KiB would
  // make the rows of a tile fight for one set of the first-level cache; runs too short leave the pointer loop
  // no work.
  const int64_t stride = source.spatial ? source.pixel_stride * source.stride_w : source.row_stride;
  plan.packed = m > 4 && (plan.panels >= 4 || stride % 4096 == 0 || source.run < 8);
  plan.segments =
      plan.packed ? 1 : std::min(source.taps(), plan.chunk / std::max<int64_t>(source.run, 1) + 2);
  const int64_t most = most_block_tiles(plan.chunk);
  // Weights of a whole row of panels that fit half of the second-level cache allow the order that writes c in
  // sequence.
  choose_grid(plan, plan.panels * kernels.panel * plan.chunk * 4 <= kRowsBytes ? plan.tiles : most, m, n,
              threads);
  // A few tiles go inside all the same: weights that come from memory then come while all of them multiply.
  constexpr int64_t kFewTiles = 4;
  plan.tiles_outside =
      plan.block_tiles > kFewTiles && plan.block_panels * kernels.panel * plan.chunk * 4 <= kRowsBytes;
  plan.lanes = static_cast<int>(std::clamp<int64_t>(plan.m_blocks * plan.n_blocks, 1, threads));
  // The larger of both gathering modes and of every grid, so that the size does not hang on the cost model.
  const size_t block = static_cast<size_t>(std::min(most, plan.tiles));
  const size_t segments = static_cast<size_t>(plan.segments);
  const size_t pointed =
      align64(segments * sizeof(int32_t)) + align64(block * segments * kRowSlots * sizeof(float*));
  const size_t packed = align64(block * static_cast<size_t>(plan.chunk) * kRowSlots * sizeof(float));
  plan.lane_bytes = std::max(packed, pointed);
  return plan;
}

void run_gemm_alone(const GemmJob& job, const GemmPlan& plan, char* memory) {
  const Runner runner(job, plan);
  const int64_t tasks = plan.m_blocks * plan.n_blocks;
  for (int64_t i = 0; i < tasks; ++i) runner.task(i, memory);
}

void run_gemm(const GemmJob& job, const GemmPlan& plan, void* workspace, base::ThreadPool& pool) {
  if (job.m == 0 || job.b.n == 0) return;
  const Runner runner(job, plan);
  char* lanes = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(workspace) + 63) & ~uintptr_t{63});
  const int64_t tasks = plan.m_blocks * plan.n_blocks;
  // Tasks run along the rows: a member's share are rows that lie together.
  run_lanes(pool, tasks, [&](int64_t i, int lane) {
    runner.task(i, lanes + static_cast<size_t>(lane) * plan.lane_bytes);
  });
}

}  // namespace trireme::cpu
