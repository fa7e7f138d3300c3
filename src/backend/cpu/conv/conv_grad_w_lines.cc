// Weight gradients of first layers: rows of taps are cut out of padded lines, so that few channels fill
// vectors.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "backend/cpu/conv/conv_grad_w.h"
#include "backend/cpu/dense/gemm_tn.h"
#include "backend/cpu/simd/simd_level.h"

#include "backend/cpu/simd/simd_targets.h"
#include "backend/cpu/device/round_up.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/conv_grad_w_lines.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

#ifndef TRIREME_CONV_GRAD_W_RUNS
#define TRIREME_CONV_GRAD_W_RUNS
namespace trireme::cpu {

/// Row i is `runs` runs of `length` floats, run r from lines + r * line + i * step.
struct RunCopy {
  const float* lines;
  int64_t line, runs, length, step;
  int64_t rows;
  float* to;       // [rows, stride]
  int64_t stride;  // at least runs * length + one vector
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

/// Whole vectors only: what a run writes too much is overwritten by the next run, or ignored after the last.
void copy_runs(const RunCopy& c) {
  for (int64_t i = 0; i < c.rows; ++i) {
    const float* from = c.lines + i * c.step;
    float* to = c.to + i * c.stride;
    for (int64_t r = 0; r < c.runs; ++r, from += c.line, to += c.length) {
      for (int64_t j = 0; j < c.length; j += static_cast<int64_t>(kLanes))
        hn::StoreU(hn::LoadU(kF, from + j), kF, to + j);
    }
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(copy_runs);

namespace {

// Pixels at a time; packed dy and columns of a chunk should stay in the second-level cache.
constexpr int64_t kMostPixels = 192, kLeastChunk = 32, kPackedBytes = 512 * 1024;
constexpr int64_t kMostPieces = 16, kLeastPixels = 2048;
// Output channels of a block, where the pixels alone make too few tasks: every block cuts the lines again.
constexpr int64_t kBlockChannels = 128;
constexpr int64_t kMostColumns = 4096;
constexpr int64_t kSlack = 16;  // floats that a vector may reach beyond a run

int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

/// Lines of one output line and what is cut out of them.
struct Cut {
  bool nchw;
  int64_t unit;           // floats of a pixel in a line
  int64_t lines, line;    // lines of an output line, floats of each
  int64_t length;         // of a run
  int64_t columns;        // lines * length = c * kh * kw
  int64_t sums;           // columns, and one of ones if dy is summed
  int64_t block, blocks;  // output channels of a block
  int64_t row;            // floats of a packed row of a block of dy
  int64_t chunk;          // pixels at a time
  int64_t pixels, pieces;
  int64_t tasks() const { return pieces * blocks; }
  int64_t piece_begin(int64_t i) const { return pixels * i / pieces; }
};

Cut cut(const ConvShape& s, ImageLayout layout, const DenseKernels& kernels) {
  Cut c{.nchw = layout == ImageLayout::nchw};
  c.unit = c.nchw ? 1 : s.c;
  c.lines = c.nchw ? s.c * s.kh : s.kh;
  c.line = round_up((s.w + s.pad_left + std::max(0, s.pad_right)) * c.unit + kSlack, 16);
  c.length = s.kw * c.unit;
  c.columns = c.lines * c.length;
  c.sums = c.columns + (conv_grad_w_lines_sums(s) ? 1 : 0);
  c.pixels = s.n * s.out_h() * s.out_w();
  c.pieces = std::clamp<int64_t>(c.pixels / kLeastPixels, 1, kMostPieces);
  c.block = c.pieces == kMostPieces ? s.oc : std::min(s.oc, kBlockChannels);
  c.blocks = divide_up(s.oc, c.block);
  c.row = round_up(c.block, kernels.panel);
  const int64_t row_bytes = (c.row + c.columns) * static_cast<int64_t>(sizeof(float));
  c.chunk = std::clamp(kPackedBytes / row_bytes / 8 * 8, kLeastChunk, kMostPixels);
  return c;
}

/// Floats of a lane: packed dy, packed columns, rows before packing, padded lines.
struct Lane {
  int64_t dy, columns, rows, lines;
  int64_t floats() const { return dy + columns + rows + lines; }
};

Lane lane_of(const Cut& c) {
  return {c.chunk * c.row, c.chunk * round_up(c.sums, kTnRows) + kSlack,
          round_up(c.chunk * (c.columns + kSlack) + kSlack, 16), c.lines * c.line};
}

class Lines {
 public:
  Lines(const ConvGradWArgs& a, const Cut& cut, float* parts)
      : a_(a), s_(a.shape), c_(cut), lane_(lane_of(cut)), kernels_(dense_kernels(a.isa)), parts_(parts) {
    simd_ready();
    copy_runs_ = HWY_DYNAMIC_DISPATCH(copy_runs);
  }

  void task(int64_t index, float* memory) const {
    const int64_t piece = index / c_.blocks, channel = index % c_.blocks * c_.block;
    const int64_t channels = std::min(c_.block, s_.oc - channel);
    const int64_t begin = c_.piece_begin(piece), end = c_.piece_begin(piece + 1), ow = s_.out_w();
    float* columns = memory + lane_.dy;
    float* rows = columns + lane_.columns;
    float* lines = rows + lane_.rows;
    std::memset(lines, 0, static_cast<size_t>(lane_.lines) * sizeof(float));
    for (int64_t k = begin; k < end; k += c_.chunk) {
      const int64_t count = std::min(c_.chunk, end - k);
      for (int64_t done = 0; done < count;) {
        const int64_t line = (k + done) / ow, first = (k + done) % ow;
        const int64_t many = std::min(ow - first, count - done);
        fill(line, lines);
        const int64_t step = s_.stride_w * c_.unit;
        RunCopy runs{lines + first * step, c_.line, c_.lines, c_.length, step, many, rows,
                     c_.columns + kSlack};
        if (c_.columns <= kTnRows) {
          // Rows as long as a packed row go where they belong.
          runs.to = columns + done * kTnRows;
          runs.stride = kTnRows;
          copy_runs_(runs);
        } else {
          copy_runs_(runs);
          copy_columns({rows, runs.stride, many, c_.columns, columns, done, count, kTnRows});
        }
        done += many;
      }
      const float* dy = packed_dy({a_.dy + k * s_.oc + channel, s_.oc, count, channels, memory, 0, count});
      if (a_.db != nullptr) add_ones(columns, count);
      multiply_tn({columns, dy, count, a_.db != nullptr ? c_.sums : c_.columns, channels,
                   parts_ + piece * s_.oc * c_.sums + channel, s_.oc, k > begin},
                  kernels_);
    }
  }

  /// Adds the pieces of results [begin, end).
  void add(int64_t begin, int64_t end) const { sum_tree(parts_, c_.pieces, s_.oc * c_.sums, begin, end); }

  /// Writes the sums [columns, oc] in ONNX order.
  void finish() const {
    const int64_t taps = s_.kh * s_.kw;
    for (int64_t i = 0; i < c_.columns; ++i) {
      const int64_t to = c_.nchw ? i : i % s_.c * taps + i / s_.c;
      for (int64_t o = 0; o < s_.oc; ++o) a_.dw[o * c_.columns + to] = parts_[i * s_.oc + o];
    }
    if (a_.db != nullptr)
      std::memcpy(a_.db, parts_ + c_.columns * s_.oc, static_cast<size_t>(s_.oc) * sizeof(float));
  }

 private:
  /// Columns of dy in panels; a single panel is dy itself.
  const float* packed_dy(ColumnCopy copy) const {
    if (copy.stride == copy.columns && (s_.oc == kernels_.panel || s_.oc == kernels_.width)) return copy.from;
    copy.width = kernels_.panel;
    copy.narrow = kernels_.width;
    copy_columns(copy);
    return copy.to;
  }

  /// A column of ones behind the taps of the packed rows [column / 16][count][16].
  void add_ones(float* columns, int64_t count) const {
    float* to = columns + c_.columns / kTnRows * count * kTnRows + c_.columns % kTnRows;
    for (int64_t i = 0; i < count; ++i) to[i * kTnRows] = 1.0f;
  }

  /// Copies the input lines of output line `line` between the zeros of their padding.
  void fill(int64_t line, float* lines) const {
    const int64_t image = line / s_.out_h(), top = line % s_.out_h() * s_.stride_h - s_.pad_top;
    const size_t bytes = static_cast<size_t>(s_.w * c_.unit) * sizeof(float);
    for (int64_t i = 0; i < c_.lines; ++i) {
      const int64_t ih = top + i % s_.kh * s_.dilation_h;
      float* out = lines + i * c_.line + s_.pad_left * c_.unit;
      if (ih < 0 || ih >= s_.h) {
        std::memset(out, 0, bytes);
      } else {
        const int64_t plane = c_.nchw ? image * s_.c + i / s_.kh : image;
        std::memcpy(out, a_.x + (plane * s_.h + ih) * s_.w * c_.unit, bytes);
      }
    }
  }

  const ConvGradWArgs& a_;
  const ConvShape& s_;
  const Cut& c_;
  Lane lane_;
  const DenseKernels& kernels_;
  float* parts_;  // [pieces, columns, oc]
  void (*copy_runs_)(const RunCopy&);
};

}  // namespace

bool conv_grad_w_lines_fits(const ConvShape& s, ImageLayout layout) {
  return (layout == ImageLayout::nchw || s.c < 16) && s.groups == 1 && s.dilation_w == 1 &&
         s.c * s.kh * s.kw <= kMostColumns && s.pad_left >= 0 && s.n * s.out_h() * s.out_w() > 0;
}

size_t conv_grad_w_lines_bytes(const ConvShape& s, ImageLayout layout, int threads) {
  int64_t floats = 0;
  for (const Isa isa : usable_isas()) {
    const Cut c = cut(s, layout, dense_kernels(isa));
    floats = std::max(floats, threads * lane_of(c).floats() + c.pieces * s.oc * c.sums);
  }
  return static_cast<size_t>(floats + 32) * sizeof(float);
}

void conv_grad_w_lines(const ConvGradWArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  const Cut c = cut(s, args.x_layout, dense_kernels(args.isa));
  const int64_t lane_floats = lane_of(c).floats();
  float* lanes = reinterpret_cast<float*>(align64(workspace));
  const Lines lines(args, c, lanes + pool.size() * lane_floats);
  std::atomic<int64_t> next{0};
  pool.run(std::min<int64_t>(pool.size(), c.tasks()), [&](int64_t lane) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < c.tasks();)
      lines.task(i, lanes + lane * lane_floats);
  });
  pool.for_range(s.oc * (args.db != nullptr ? c.sums : c.columns), 1024,
                 [&](int64_t begin, int64_t end) { lines.add(begin, end); });
  lines.finish();
}

}  // namespace trireme::cpu
#endif
