// Cuts plain 8-bit products into blocks whose activations stay in the L1 cache, and runs their tiles.
#include "backend/cpu/quant/qgemm_bytes.h"

#include <algorithm>

#include "backend/cpu/tiles/qgemm_kernels.h"
#include "backend/cpu/device/round_up.h"

namespace trireme::cpu {
namespace {

constexpr int64_t kColumns = 64;          // columns of a tile of four vectors; blocks start at multiples
constexpr int64_t kBand = kByteRows / 2;  // rows of a tile of four vectors; narrower tiles take two bands
constexpr int64_t kRowBytes = 20 * 1024;  // activations of a block, which share the L1 cache with weights
constexpr int64_t kMostBands = 16;

/// A grid of tasks: blocks of bands x blocks of columns.
struct Grid {
  int64_t bands = 1;  // of nearly equal height
  int64_t rows = 1, columns = 1;
};

/// The grid that minimises the work of the busiest thread; a task costs as much as 4 KiB of results.
Grid choose_grid(int64_t m, int64_t n, int64_t k_bytes, int threads) {
  Grid best;
  best.bands = divide_up(m, kBand);
  const int64_t most = std::clamp(kRowBytes / k_bytes / kByteRows * 2, int64_t{2}, kMostBands);
  best.rows = divide_up(best.bands, most);
  if (threads == 1 || best.rows >= 8 * threads) return best;
  const int64_t stripes = divide_up(n, kColumns), least_rows = best.rows;
  int64_t least = 0;
  for (int64_t columns = 1; columns <= stripes; ++columns) {
    const int64_t width = std::min(n, divide_up(stripes, columns) * kColumns);
    const int64_t enough = std::max(least_rows, divide_up(4 * threads, columns));
    for (int64_t rows = least_rows; rows <= std::min(enough, best.bands); ++rows) {
      const int64_t height = divide_up(best.bands, rows) * kBand;
      const int64_t cost = divide_up(rows * columns, threads) * (height * width * (k_bytes + 64) + 4096 * 64);
      if (least != 0 && cost >= least) continue;
      least = cost;
      best.rows = rows;
      best.columns = columns;
    }
    if (columns >= 4 * threads) break;
  }
  return best;
}

class ByteRunner {
 public:
  explicit ByteRunner(const QuantGemmArgs& args)
      : args_(args), kernels_(quant_kernels(args.b.isa)), groups_(divide_up(args.b.run, kernels_.group)) {
    const QuantEpilogue& e = args.epilogue;
    prototype_.lda = args.lda;
    prototype_.k = groups_;
    prototype_.panel_stride = groups_ * kernels_.panel;
    prototype_.ldc = args.ldc;
    prototype_.output_signed = e.output == QuantOutput::s8;
    prototype_.zero = e.zero, prototype_.lo = e.lo, prototype_.hi = e.hi;
  }

  /// Multiplies bands [begin, end) of `bands` with columns [first, last).
  void block(int64_t bands, int64_t begin, int64_t end, int64_t first, int64_t last) const {
    const uint8_t* a = static_cast<const uint8_t*>(args_.a);
    uint8_t* c = static_cast<uint8_t*>(args_.c);
    ByteTile tile = prototype_;
    for (int64_t column = first, step; column < last; column += step) {
      const int64_t left = last - column;
      const int vectors = left > 48 ? 4 : left > 16 ? 2 : 1;
      step = vectors * kernels_.width;
      tile.n = static_cast<int>(std::min(left, step));
      tile.b = args_.b.data + column * groups_;
      tile.offsets = args_.epilogue.offsets + column;
      tile.scale = args_.epilogue.scale + column;
      const auto& table = kernels_.bytes[args_.input.is_signed][vectors / 2];
      const int64_t high = vectors == 4 ? 1 : 2;
      for (int64_t band = begin; band < end; band += high) {
        const int64_t row = args_.m * band / bands, next = args_.m * std::min(band + high, end) / bands;
        tile.a = a + row * args_.lda;
        tile.c = c + row * args_.ldc + column;
        table[next - row - 1](tile);
      }
    }
  }

 private:
  const QuantGemmArgs& args_;
  const QuantKernels& kernels_;
  int64_t groups_;
  ByteTile prototype_;  // values common to all tiles
};

}  // namespace

bool fits_byte_tiles(const QuantGemmArgs& args) {
  const QuantEpilogue& e = args.epilogue;
  const QuantKernels& kernels = quant_kernels(args.b.isa);
  if (kernels.rows_from_bytes > 0 && args.b.run >= kernels.rows_from_bytes) return false;
  return (e.output == QuantOutput::u8 || e.output == QuantOutput::s8) && e.scales_below_one && e.offsets &&
         !e.row_factors && args.b.taps == 1 && args.b.run % 4 == 0 && kernels.bytes[0][0][0] != nullptr;
}

void run_byte_tiles(const QuantGemmArgs& args, base::ThreadPool& pool) {
  const ByteRunner runner(args);
  const int64_t n = args.b.n;
  const Grid grid = choose_grid(args.m, n, args.b.run, pool.size());
  const int64_t stripes = divide_up(n, kColumns);
  pool.run(grid.rows * grid.columns, [&](int64_t i) {
    const int64_t row = i / grid.columns, column = i % grid.columns;
    const int64_t first = stripes * column / grid.columns, last = stripes * (column + 1) / grid.columns;
    runner.block(grid.bands, grid.bands * row / grid.rows, grid.bands * (row + 1) / grid.rows,
                 first * kColumns, std::min(n, last * kColumns));
  });
}

}  // namespace trireme::cpu
