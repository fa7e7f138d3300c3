// Gathers activation bytes into 32-bit groups for each tile and calls the 8-bit tile kernels.
#include "backend/cpu/quant/qgemm_driver.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/dense/gemm_rows.h"
#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/device/round_up.h"

namespace trireme::cpu {
namespace {

int64_t groups_of(int64_t run, int group) { return (run + group - 1) / group; }

/// Copies or widens one run of bytes into whole groups: [length] bytes -> [groups] 32-bit words, zero-filled.
void stage_run(const uint8_t* in, int64_t run, const QuantJob& job, int group, int32_t* out) {
  const int64_t groups = groups_of(run, group);
  out[groups - 1] = 0;
  if (group == 4) {
    std::memcpy(out, in, static_cast<size_t>(run));
    return;
  }
  int16_t* words = reinterpret_cast<int16_t*>(out);
  const int8_t* signed_in = reinterpret_cast<const int8_t*>(in);
  if (job.input.is_signed) {
    for (int64_t i = 0; i < run; ++i) words[i] = signed_in[i];
  } else {
    for (int64_t i = 0; i < run; ++i) words[i] = in[i];
  }
}

class JobRunner {
 public:
  JobRunner(const QuantJob& job, const GemmPlan& plan)
      : job_(job),
        plan_(plan),
        kernels_(quant_kernels(job.b.isa)),
        floats_(dense_kernels(job.b.isa)),
        run_groups_(groups_of(job.source.run, kernels_.group)),
        taps_(job.source.taps()) {
    const QuantEpilogue& e = job.epilogue;
    curved_ = e.output == QuantOutput::f32 && !clamp_bounds(e.real, prototype_.lo, prototype_.hi);
    if (e.output == QuantOutput::u8 || e.output == QuantOutput::s8) {
      prototype_.lo = static_cast<float>(e.lo - e.zero);
      prototype_.hi = static_cast<float>(e.hi - e.zero);
    }
    prototype_.segments = static_cast<int>(taps_);
    prototype_.length = run_groups_;
    prototype_.k = depth();
    prototype_.ldc = job.ldc;
    prototype_.output = e.output;
    prototype_.zero = e.zero;
    prototype_.act_before_residual = e.real.act_before_residual;
  }

  void task(int64_t index, char* lane) const {
    const int64_t mb = index / plan_.n_blocks;
    const int64_t nb = index % plan_.n_blocks;
    const int64_t first = plan_.tiles * mb / plan_.m_blocks;
    const int64_t last = plan_.tiles * (mb + 1) / plan_.m_blocks;
    const int64_t step = plan_.tiles_outside ? 1 : last - first;
    for (int64_t t = first; t < last; t += step) {
      for (int64_t i = t; i < t + step; ++i) gather(i, i - t, lane);
      multiply({job_.b, 0}, t, t + step, nb, lane);
      for (size_t g = 1; g < job_.groups.size(); ++g) {
        for (int64_t i = t; i < t + step; ++i) next_group(i - t, lane);
        multiply({job_.groups[g], static_cast<int64_t>(g) * job_.b.n}, t, t + step, nb, lane);
      }
    }
  }

 private:
  /// The weights of a group, and the first column of the output that they compute.
  struct Group {
    const PackedQuantMatrix& b;
    int64_t column;
  };
  int64_t tile_begin(int64_t tile) const { return plan_.tile_begin(tile); }
  int64_t depth() const { return taps_ * run_groups_; }

  // A lane's memory: stage [kRowSlots, run_groups], then for each tile row sums [kRowSlots] and the groups or
  // pointers.
  char* stage(char* lane) const { return lane; }
  size_t stage_bytes() const {
    return align64(static_cast<size_t>(run_groups_ * kRowSlots) * sizeof(int32_t));
  }
  size_t tile_bytes() const {
    const int64_t entries = plan_.packed ? depth() : taps_;
    const size_t entry = plan_.packed ? sizeof(int32_t) : sizeof(void*);
    return align64((static_cast<size_t>(entries) * entry + sizeof(int32_t)) * kRowSlots);
  }
  char* slot(char* lane, int64_t index) const {
    return lane + stage_bytes() + static_cast<size_t>(index) * tile_bytes();
  }
  static char* body(char* slot) { return slot + kRowSlots * sizeof(int32_t); }

  void gather(int64_t tile, int64_t index, char* lane) const {
    const int64_t begin = tile_begin(tile);
    const int count = static_cast<int>(tile_begin(tile + 1) - begin);
    char* memory = slot(lane, index);
    if (!plan_.packed && !job_.source.spatial && !job_.epilogue.row_factors) {
      // Fast path: small products, which are common, need none of the general preparation.
      const char** row = reinterpret_cast<const char**>(body(memory));
      for (int r = 0; r < count; ++r) row[r] = job_.source.base + (begin + r) * job_.source.row_stride;
      return;
    }
    const TileRows rows(job_.source, begin, count);
    if (job_.epilogue.row_factors) sum_rows(rows, count, reinterpret_cast<int32_t*>(memory));
    if (!plan_.packed) {
      const int32_t** out = reinterpret_cast<const int32_t**>(body(memory));
      for (int64_t tap = 0; tap < taps_; ++tap) rows.tap(tap, 0, out + tap * kRowSlots);
      return;
    }
    int32_t* out = reinterpret_cast<int32_t*>(body(memory));
    for (int64_t tap = 0; tap < taps_; ++tap, out += run_groups_ * kRowSlots) {
      pack_tap(rows, tap, reinterpret_cast<int32_t*>(stage(lane)), out);
    }
  }

  /// Advances a tile to the next group. Every group has the same pixels, and its channels follow those of the
  /// previous group.
  void next_group(int64_t index, char* lane) const {
    const char** rows = reinterpret_cast<const char**>(body(slot(lane, index)));
    for (int64_t i = 0; i < taps_ * kRowSlots; ++i) rows[i] += job_.source.run;
  }

  void pack_tap(const TileRows& rows, int64_t tap, int32_t* staged, int32_t* out) const {
    const float* start[kRowSlots];
    if (kernels_.group == 4 && job_.source.run % 4 == 0) {
      rows.tap(tap, 0, start);
    } else {
      const uint8_t* bytes[kRowSlots];
      rows.tap(tap, 0, bytes);
      for (int r = 0; r < kRowSlots; ++r) {
        int32_t* row = staged + r * run_groups_;
        if (r == 0 || bytes[r] != bytes[0]) stage_run(bytes[r], job_.source.run, job_, kernels_.group, row);
        start[r] = reinterpret_cast<const float*>(bytes[r] == bytes[0] ? staged : row);
      }
    }
    // The transpose only moves 32-bit lanes, so groups of bytes may pass through it as floats.
    for (int r = 0; r < kernels_.tile_rows; r += kernels_.width) {
      floats_.transpose(start + r, run_groups_, reinterpret_cast<float*>(out + r), kRowSlots);
    }
    if (kernels_.group == 4 && job_.input.is_signed) {
      for (int64_t i = 0; i < run_groups_ * kRowSlots; ++i) out[i] ^= static_cast<int32_t>(0x80808080u);
    }
  }

  /// Sums the raw activation values of each row, including padding.
  void sum_rows(const TileRows& rows, int count, int32_t* sums) const {
    std::fill(sums, sums + kRowSlots, 0);
    for (int64_t tap = 0; tap < taps_; ++tap) {
      const uint8_t* start[kRowSlots];
      rows.tap(tap, 0, start);
      for (int r = 0; r < count; ++r) {
        const int8_t* signed_row = reinterpret_cast<const int8_t*>(start[r]);
        int32_t sum = 0;
        if (job_.input.is_signed) {
          for (int64_t i = 0; i < job_.source.run; ++i) sum += signed_row[i];
        } else {
          for (int64_t i = 0; i < job_.source.run; ++i) sum += start[r][i];
        }
        sums[r] += sum;
      }
    }
  }

  void multiply(Group group, int64_t first, int64_t last, int64_t nb, char* lane) const {
    const QuantEpilogue& e = job_.epilogue;
    QuantTile tile = prototype_;
    const int64_t panel_begin = nb * plan_.block_panels;
    const int64_t panel_end = std::min(plan_.panels, panel_begin + plan_.block_panels);
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      const int64_t own = p * kernels_.panel, column = group.column + own;
      tile.n = static_cast<int>(std::min<int64_t>(group.b.n - own, kernels_.panel));
      tile.b = group.b.data + own * depth();
      tile.offsets = e.offsets ? e.offsets + column : nullptr;
      tile.row_factors = e.row_factors ? e.row_factors + column : nullptr;
      tile.scale = e.scale ? e.scale + column : nullptr;
      tile.bias = e.real.bias ? e.real.bias + column : nullptr;
      for (int64_t t = first; t < last; ++t) run_tile(tile, t, slot(lane, t - first), column);
    }
  }

  void run_tile(QuantTile& tile, int64_t t, char* memory, int64_t column) const {
    const QuantEpilogue& e = job_.epilogue;
    const int64_t begin = tile_begin(t);
    const int64_t rows = tile_begin(t + 1) - begin;
    const int64_t at = begin * job_.ldc + column;
    const int64_t element = e.output == QuantOutput::u8 || e.output == QuantOutput::s8 ? 1 : 4;
    tile.c = static_cast<char*>(job_.c) + at * element;
    tile.row_sums = reinterpret_cast<const int32_t*>(memory);
    const float* residual = e.real.residual ? e.real.residual + at : nullptr;
    tile.residual = curved_ && e.real.act_before_residual ? nullptr : residual;
    const int vectors = tile.n > kernels_.width ? 2 : 1;
    if (plan_.packed) {
      tile.a = reinterpret_cast<const int32_t*>(body(memory));
      kernels_.packed[vectors - 1][rows - 1](tile);
    } else {
      tile.rows = reinterpret_cast<const int32_t* const*>(body(memory));
      kernels_.rows[job_.input.is_signed][vectors - 1][rows - 1](tile);
    }
    if (!curved_) return;
    floats_.activate({static_cast<float*>(tile.c), job_.ldc, rows, tile.n,
                      e.real.act_before_residual ? residual : nullptr},
                     e.real);
  }

  const QuantJob& job_;
  const GemmPlan& plan_;
  const QuantKernels& kernels_;
  const DenseKernels& floats_;
  int64_t run_groups_, taps_;
  QuantTile prototype_;  // values common to all tiles of the job
  bool curved_ = false;
};

}  // namespace

GemmPlan plan_quant(const RowSource& source, int64_t m, int64_t n, Isa isa, int threads) {
  const QuantKernels& kernels = quant_kernels(isa);
  RowSource groups = source;
  groups.run = groups_of(source.run, kernels.group);
  const bool in_place = kernels.group == 4 && source.run % 4 == 0;
  // One pass covers the whole depth, because an 8-bit output cannot hold partial sums.
  GemmPlan plan =
      plan_gemm(m, n, groups, dense_kernels(isa), {std::max<int64_t>(1, groups.depth()), threads});
  const bool has_tiles = kernels.rows_from_bytes > 0 && source.run >= kernels.rows_from_bytes;
  plan.packed = !in_place || (plan.packed && !has_tiles);
  const int64_t depth = groups.depth();
  const int64_t tiles = plan.tiles_outside ? 1 : plan.block_tiles;
  const size_t tile =
      align64(static_cast<size_t>(std::max<int64_t>(depth + 1, 2 * source.taps() + 1)) * 4 * kRowSlots);
  plan.lane_bytes =
      align64(static_cast<size_t>(groups.run * kRowSlots) * 4) + static_cast<size_t>(tiles) * tile;
  return plan;
}

bool joins_groups(const QuantJob& job) {
  const QuantKernels& kernels = quant_kernels(job.b.isa);
  return job.groups.size() > 1 && kernels.group == 4 && job.source.run % 4 == 0 &&
         job.b.n <= 2 * kernels.panel && job.epilogue.row_factors == nullptr;
}

GemmPlan plan_quant_groups(const QuantJob& job, int threads) {
  GemmPlan plan = plan_quant(job.source, job.m, job.b.n, job.b.isa, threads);
  plan.packed = false;
  plan.tiles_outside = true;
  plan.n_blocks = 1;
  plan.block_panels = plan.panels;
  constexpr int64_t kBlocks = 4;  // per thread, so that others can take over blocks of a late thread
  plan.m_blocks = std::clamp<int64_t>(plan.tiles, 1, kBlocks * threads);
  plan.lanes = static_cast<int>(std::min<int64_t>(plan.m_blocks, threads));
  return plan;
}

void run_quant(const QuantJob& job, const GemmPlan& plan, void* workspace, base::ThreadPool& pool) {
  if (job.m == 0 || job.b.n == 0) return;
  const JobRunner runner(job, plan);
  char* lanes = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(workspace) + 63) & ~uintptr_t{63});
  const int64_t tasks = plan.m_blocks * plan.n_blocks;
  run_lanes(pool, tasks, [&](int64_t i, int lane) {
    runner.task(i, lanes + static_cast<size_t>(lane) * plan.lane_bytes);
  });
}

}  // namespace trireme::cpu
