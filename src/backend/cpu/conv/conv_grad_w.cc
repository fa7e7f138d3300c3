// Weight gradients by blocks of output channels x (tap, channel) columns, over chunks of pixels.
#include "backend/cpu/conv/conv_grad_w.h"

#include <algorithm>
#include <atomic>

#include "backend/cpu/dense/gemm_tn.h"
#include "backend/cpu/device/round_up.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

// Per task: at most 256 KiB of results and 512 KiB of packed x and dy, most of a second-level cache of 1 MiB.
constexpr int64_t kBlockRows = 256, kBlockResults = 64 * 1024, kPackedBytes = 512 * 1024;
// Tasks that keep any team we run busy, and pixels that outweigh adding a partial result.
constexpr int64_t kMostPixels = 192;
constexpr int64_t kTasks = 32, kLeastPixels = 768;

/// How a layer is cut into tasks.
struct TaskCut {
  int64_t pixels, og, cg, taps;
  int64_t panel, tap_panels, panels;  // panels of one tap, of one group
  int64_t block_panels, n_blocks, m_blocks, pieces;
  int64_t block_rows, chunk;  // output channels of a block; pixels packed at a time
  int64_t tasks(int64_t groups) const { return groups * n_blocks * m_blocks * pieces; }
  int64_t piece_begin(int64_t i) const { return pixels * i / pieces; }
};

TaskCut cut_tasks(const ConvShape& s, int64_t panel) {
  TaskCut c{.pixels = s.n * s.out_h() * s.out_w(),
            .og = s.oc / s.groups,
            .cg = s.c / s.groups,
            .taps = s.kh * s.kw,
            .panel = panel};
  c.tap_panels = divide_up(c.cg, panel);
  c.panels = c.taps * c.tap_panels;
  c.block_rows = divide_up(std::min(c.og, kBlockRows), kTnRows) * kTnRows;
  c.n_blocks = divide_up(c.panels, std::max<int64_t>(1, kBlockResults / c.block_rows / panel));
  c.block_panels = divide_up(c.panels, c.n_blocks);
  c.n_blocks = divide_up(c.panels, c.block_panels);
  c.m_blocks = divide_up(c.og, kBlockRows);
  c.chunk = std::clamp<int64_t>(kPackedBytes / 4 / (c.block_rows + c.block_panels * panel) / 8 * 8, 64,
                                kMostPixels);
  const int64_t blocks = s.groups * c.n_blocks * c.m_blocks;
  c.pieces = std::clamp<int64_t>(divide_up(kTasks, blocks), 1, std::max<int64_t>(1, c.pixels / kLeastPixels));
  return c;
}

/// Results of 1 x 1 kernels in one piece are dw itself.
bool writes_dw(const TaskCut& c) { return c.taps == 1 && c.pieces == 1; }

int64_t lane_floats(const TaskCut& c) { return c.chunk * (c.block_rows + c.block_panels * c.panel); }

class Columns {
 public:
  Columns(const ConvGradWArgs& a, const TaskCut& cut, float* parts)
      : a_(a), s_(a.shape), c_(cut), kernels_(dense_kernels(a.isa)), parts_(parts) {}

  void task(int64_t index, float* memory) const {
    Block b;
    b.piece = index % c_.pieces;
    b.first = index / c_.pieces % c_.n_blocks * c_.block_panels;
    b.last = std::min(c_.panels, b.first + c_.block_panels);
    const int64_t mb = index / c_.pieces / c_.n_blocks % c_.m_blocks;
    b.group = index / c_.pieces / c_.n_blocks / c_.m_blocks;
    b.row = mb * kBlockRows;
    b.rows = std::min(kBlockRows, c_.og - b.row);
    const int64_t begin = c_.piece_begin(b.piece), end = c_.piece_begin(b.piece + 1);
    float* dy = memory;
    float* x = memory + c_.chunk * c_.block_rows;
    for (int64_t k = begin; k < end; k += c_.chunk) {
      const int64_t count = std::min(c_.chunk, end - k);
      copy_columns(
          {a_.dy + k * s_.oc + b.group * c_.og + b.row, s_.oc, count, b.rows, dy, 0, count, kTnRows});
      gather(b, k, count, x);
      multiply(b, count, dy, x, k > begin);
    }
  }

  /// Adds the pieces of output channel `channel` and writes its taps in ONNX order.
  void finish(int64_t channel) const {
    const int64_t g = channel / c_.og, m = channel % c_.og, size = part_floats();
    for (int64_t t = 0; t < c_.taps; ++t) {
      const int64_t at = ((g * c_.taps + t) * c_.og + m) * c_.cg;
      sum_tree(parts_, c_.pieces, size, at, at + c_.cg);
      float* out = a_.dw + channel * c_.cg * c_.taps + t;
      for (int64_t i = 0; i < c_.cg; ++i) out[i * c_.taps] = parts_[at + i];
    }
  }

 private:
  struct Block {
    int64_t piece, group, row, rows, first, last;  // panels [first, last)
  };

  int64_t part_floats() const { return s_.oc * c_.cg * c_.taps; }

  /// Packs the columns of the block's panels for pixels [k, k + count), tap by tap.
  void gather(const Block& b, int64_t k, int64_t count, float* x) const {
    for (int64_t p = b.first; p < b.last;) {
      const int64_t tap = p / c_.tap_panels, channel = p % c_.tap_panels * c_.panel;
      const int64_t panels = std::min(b.last - p, c_.tap_panels - p % c_.tap_panels);
      ColumnCopy copy{.stride = s_.stride_w * s_.c, .to = x, .rows_total = count};
      copy.columns = std::min(panels * c_.panel, c_.cg - channel);
      copy.width = static_cast<int>(c_.panel);
      copy.narrow = kernels_.width;
      gather_tap(tap, b.group * c_.cg + channel, k, copy);
      x += tn_row_floats(copy.columns, kernels_) * count;
      p += panels;
    }
  }

  void gather_tap(int64_t tap, int64_t channel, int64_t k, ColumnCopy copy) const {
    const int64_t oh = s_.out_h(), ow = s_.out_w();
    if (c_.taps == 1 && s_.stride_h == 1 && s_.stride_w == 1 && oh == s_.h && ow == s_.w) {
      copy.from = a_.x + k * s_.c + channel;
      copy.rows = copy.rows_total;
      return copy_columns(copy);
    }
    const int64_t down = tap / s_.kw * s_.dilation_h - s_.pad_top;
    const int64_t right = tap % s_.kw * s_.dilation_w - s_.pad_left;
    // Result columns whose tap lies inside the line.
    const int64_t low = right >= 0 ? 0 : divide_up(-right, s_.stride_w);
    const int64_t high = s_.w <= right ? 0 : divide_up(s_.w - right, s_.stride_w);
    const auto put = [&](const float* from, int64_t rows) {
      if (rows <= 0) return;
      copy.from = from;
      copy.rows = rows;
      copy_columns(copy);
      copy.first += rows;
    };
    while (copy.first < copy.rows_total) {
      const int64_t at = k + copy.first, line = at / ow, begin = at % ow;
      const int64_t end = std::min(ow, begin + copy.rows_total - copy.first);
      const int64_t ih = line % oh * s_.stride_h + down;
      if (ih < 0 || ih >= s_.h) {
        put(nullptr, end - begin);
        continue;
      }
      const int64_t from = std::clamp(low, begin, end), to = std::clamp(high, from, end);
      put(nullptr, from - begin);
      put(a_.x + (((line / oh) * s_.h + ih) * s_.w + from * s_.stride_w + right) * s_.c + channel, to - from);
      put(nullptr, end - to);
    }
  }

  void multiply(const Block& b, int64_t count, const float* dy, const float* x, bool accumulate) const {
    float* part = writes_dw(c_) ? a_.dw : parts_ + b.piece * part_floats();
    for (int64_t p = b.first; p < b.last;) {
      const int64_t tap = p / c_.tap_panels, channel = p % c_.tap_panels * c_.panel;
      const int64_t panels = std::min(b.last - p, c_.tap_panels - p % c_.tap_panels);
      TnBlock t{.a = dy, .b = x, .k = count, .m = b.rows};
      t.n = std::min(panels * c_.panel, c_.cg - channel);
      t.c = part + ((b.group * c_.taps + tap) * c_.og + b.row) * c_.cg + channel;
      t.ldc = c_.cg;
      t.accumulate = accumulate;
      multiply_tn(t, kernels_);
      x += tn_row_floats(t.n, kernels_) * count;
      p += panels;
    }
  }

  const ConvGradWArgs& a_;
  const ConvShape& s_;
  const TaskCut& c_;
  const DenseKernels& kernels_;
  float* parts_;  // [pieces, groups, taps, og, cg]
};

}  // namespace

bool conv_grad_w_columns_fits(const ConvShape& s, ImageLayout layout) {
  return layout == ImageLayout::nhwc && s.n * s.out_h() * s.out_w() > 0;
}

size_t conv_grad_w_columns_bytes(const ConvShape& s, int threads) {
  int64_t floats = 0;
  for (const Isa isa : usable_isas()) {
    const TaskCut c = cut_tasks(s, dense_kernels(isa).panel);
    const int64_t parts = writes_dw(c) ? 0 : c.pieces * s.oc * c.cg * c.taps;
    floats = std::max(floats, parts + threads * lane_floats(c));
  }
  return static_cast<size_t>(floats + 32) * sizeof(float);
}

void conv_grad_w_columns(const ConvGradWArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  const TaskCut c = cut_tasks(s, dense_kernels(args.isa).panel);
  float* lanes = reinterpret_cast<float*>(align64(workspace));
  float* parts = lanes + pool.size() * lane_floats(c);
  const Columns columns(args, c, parts);
  std::atomic<int64_t> next{0};
  pool.run(std::min<int64_t>(pool.size(), c.tasks(s.groups)), [&](int64_t lane) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < c.tasks(s.groups);)
      columns.task(i, lanes + lane * lane_floats(c));
  });
  if (!writes_dw(c)) pool.run(s.oc, [&](int64_t channel) { columns.finish(channel); });
}

}  // namespace trireme::cpu
