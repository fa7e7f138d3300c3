// Copies the lines that a block of groups reads next to each other, then runs the byte tiles over them.
#include "backend/cpu/conv_forms/quant_groups.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/tiles/qgemm_kernels.h"
#include "backend/cpu/device/round_up.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

constexpr int64_t kMostOutputs = 24;       // of a group: more fill the tiles of a product for each group
constexpr int64_t kLineBytes = 24 * 1024;  // of a task: beside the weights in a first-level cache

size_t block_bytes(const ConvShape& s, const QuantGroupBlocks& b, Isa isa) {
  return align64(packed_quant_bytes(s.kh, s.kw * b.window, b.outputs, isa));
}

/// Output lines of a task and input lines under them.
struct Bands {
  int64_t count = 1;    // bands of an image
  int64_t pixels = 0;   // of a line with the padding that outputs read
  int64_t in_rows = 0;  // of a band, at most
  int64_t line = 0;     // bytes
  size_t bytes() const { return align64(static_cast<size_t>(in_rows * line)); }
};

Bands bands_of(const ConvShape& s, const QuantGroupBlocks& b, int threads) {
  Bands g;
  g.pixels = s.window_pixels();  // dilation_w is 1
  g.line = g.pixels * b.window;
  const int64_t reach = s.window_lines();
  int64_t rows = std::clamp<int64_t>((kLineBytes / g.line - reach) / s.stride_h + 1, 1, s.out_h());
  // A team wants several tasks a member; a task should outweigh the microsecond that handing it out costs.
  if (threads > 1) {
    const int64_t row_work = s.out_w() * b.outputs * s.kh * s.kw * b.window;
    const int64_t least = 1 + 400000 / (row_work + 1);
    const int64_t fair = s.n * s.out_h() * b.blocks / (4 * threads);
    rows = std::clamp<int64_t>(std::min(rows, std::max(least, fair)), 1, s.out_h());
  }
  g.count = divide_up(s.out_h(), rows);
  g.in_rows = (rows - 1) * s.stride_h + reach;
  return g;
}

/// Pixels of one line on their way into the window, all bytes xor `flip`.
struct PixelCopy {
  const uint8_t* x;
  int64_t pixels, c;       // pixels, and bytes between them
  int64_t inputs, window;  // bytes there are, and bytes between pixels of `out`
  uint8_t flip;
  uint8_t* out;
};

template <int kBytes>
void copy_whole(const PixelCopy& g) {
  const uint8_t* x = g.x;
  uint8_t* out = g.out;
  for (int64_t i = 0; i < g.pixels; ++i, x += g.c, out += kBytes) {
    __builtin_prefetch(x + 12 * g.c, 0, 3);  // the processor does not foresee pixels a line or more apart
    uint8_t bytes[kBytes];
    std::memcpy(bytes, x, kBytes);
    for (uint8_t& byte : bytes) byte ^= g.flip;
    std::memcpy(out, bytes, kBytes);
  }
}

void copy_pixels(const PixelCopy& g) {
  if (g.inputs == g.window) {
    switch (g.window) {
      case 4: return copy_whole<4>(g);
      case 8: return copy_whole<8>(g);
      case 16: return copy_whole<16>(g);
      case 24: return copy_whole<24>(g);
      case 32: return copy_whole<32>(g);
      case 48: return copy_whole<48>(g);
      case 64: return copy_whole<64>(g);
    }
  }
  const uint32_t flip = 0x01010101u * g.flip;
  const int64_t whole = g.inputs / 4 * 4;
  for (int64_t i = 0; i < g.pixels; ++i) {
    const uint8_t* x = g.x + i * g.c;
    uint8_t* out = g.out + i * g.window;
    for (int64_t c = 0; c < whole; c += 4) {
      uint32_t bytes;
      std::memcpy(&bytes, x + c, sizeof bytes);
      bytes ^= flip;
      std::memcpy(out + c, &bytes, sizeof bytes);
    }
    for (int64_t c = whole; c < g.inputs; ++c) out[c] = x[c] ^ g.flip;
    std::fill(out + g.inputs, out + g.window, uint8_t{0});  // under weights of zero
  }
}

class Grouped {
 public:
  Grouped(const QuantConvArgs& args, const QuantGroupBlocks& blocks, const Bands& bands)
      : a_(args), s_(args.shape), b_(blocks), g_(bands), kernels_(quant_kernels(args.groups[0].isa)) {
    const QuantEpilogue& e = a_.epilogue;
    flip_ = a_.input.is_signed ? 0x80 : 0;  // the tiles read unsigned bytes
    outside_ = static_cast<uint8_t>(a_.input.zero & 0xff) ^ flip_;
    prototype_.lda = s_.stride_w * b_.window;
    prototype_.segments = s_.kh;
    prototype_.segment_stride = s_.dilation_h * g_.line;
    prototype_.k = s_.kw * b_.window / 4;
    prototype_.panel_stride = s_.kh * prototype_.k * kernels_.panel;
    prototype_.ldc = s_.oc;
    prototype_.output_signed = e.output == QuantOutput::s8;
    prototype_.zero = e.zero, prototype_.lo = e.lo, prototype_.hi = e.hi;
  }

  int64_t tasks() const { return s_.n * g_.count * b_.blocks; }

  void task(int64_t index, uint8_t* lines) const {
    const int64_t block = index % b_.blocks, band = index / b_.blocks % g_.count;
    const int64_t image = index / b_.blocks / g_.count;
    const int64_t begin = s_.out_h() * band / g_.count, end = s_.out_h() * (band + 1) / g_.count;
    copy_lines(image, begin, end, block, lines);
    ByteTile tile = prototype_;
    for (int64_t oh = begin; oh < end; ++oh)
      run_line((image * s_.out_h() + oh) * s_.out_w(), lines + (oh - begin) * s_.stride_h * g_.line, block,
               tile);
  }

 private:
  void copy_lines(int64_t image, int64_t begin, int64_t end, int64_t block, uint8_t* out) const {
    const int64_t rows = (end - 1 - begin) * s_.stride_h + int64_t{s_.kh - 1} * s_.dilation_h + 1;
    const int64_t first = begin * s_.stride_h - s_.pad_top;
    const int64_t left = std::min<int64_t>(s_.pad_left, g_.pixels);
    const int64_t inside = std::clamp<int64_t>(s_.w, 0, g_.pixels - left);
    const auto fill = [&](uint8_t* to, int64_t pixels) {
      std::memset(to, outside_, static_cast<size_t>(pixels * b_.window));
    };
    for (int64_t r = 0; r < rows; ++r, out += g_.line) {
      const int64_t ih = first + r;
      if (ih < 0 || ih >= s_.h) {
        fill(out, g_.pixels);
        continue;
      }
      const uint8_t* x = static_cast<const uint8_t*>(a_.x) + (image * s_.h + ih) * s_.w * s_.c;
      fill(out, left);
      copy_pixels({x + block * b_.inputs, inside, s_.c, b_.inputs, b_.window, flip_, out + left * b_.window});
      fill(out + (left + inside) * b_.window, g_.pixels - left - inside);
    }
  }

  /// Output pixels [at, at + ow) of one block.
  void run_line(int64_t at, const uint8_t* lines, int64_t block, ByteTile& tile) const {
    const QuantEpilogue& e = a_.epilogue;
    const int64_t ow = s_.out_w();
    for (int64_t column = 0, step; column < b_.outputs; column += step) {
      const int64_t left = b_.outputs - column, channel = block * b_.outputs + column;
      const int vectors = left > 48 ? 4 : left > 16 ? 2 : 1;
      step = vectors * kernels_.width;
      tile.n = static_cast<int>(std::min(left, step));
      tile.b = a_.groups[block].data + column * tile.segments * tile.k;
      tile.offsets = e.offsets + channel;
      tile.scale = e.scale + channel;
      const int64_t high = vectors == 4 ? kByteRows / 2 : kByteRows, tiles = divide_up(ow, high);
      for (int64_t t = 0, first = 0, last; t < tiles; ++t, first = last) {
        last = ow * (t + 1) / tiles;
        tile.a = lines + first * tile.lda;
        tile.c = static_cast<uint8_t*>(a_.y) + (at + first) * s_.oc + channel;
        kernels_.bytes[0][vectors / 2][last - first - 1](tile);
      }
    }
  }

  const QuantConvArgs& a_;
  const ConvShape& s_;
  const QuantGroupBlocks b_;
  const Bands& g_;
  const QuantKernels& kernels_;
  uint8_t flip_, outside_;
  ByteTile prototype_;  // what all tiles share
};

}  // namespace

QuantGroupBlocks quant_group_blocks(const ConvShape& s, Isa isa) {
  const QuantKernels& kernels = quant_kernels(isa);
  QuantGroupBlocks none;
  none.blocks = 0;
  if (kernels.bytes[0][0][0] == nullptr || s.groups < 2 || s.kh * s.kw < 2 || s.dilation_w != 1) return none;
  const int64_t cg = s.c / s.groups, og = s.oc / s.groups;
  if (cg < 1 || og < 1 || og > kMostOutputs) return none;
  if (!copy_is_proportionate(s, s.window_lines() * s.window_pixels())) return none;
  QuantGroupBlocks b;
  for (int64_t together = 2; together <= kernels.width; ++together) {
    const bool fits = together * og <= kernels.width && together * cg <= kernels.width;
    if (fits && s.groups % together == 0) b.together = together;
  }
  b.blocks = s.groups / b.together;
  b.inputs = b.together * cg, b.outputs = b.together * og;
  b.window = divide_up(b.inputs, 4) * 4;
  return b;
}

bool quant_groups_fits(const ConvShape& s, Isa isa) { return quant_group_blocks(s, isa).blocks > 0; }

size_t packed_quant_groups_bytes(const ConvShape& s, Isa isa) {
  const QuantGroupBlocks b = quant_group_blocks(s, isa);
  return block_bytes(s, b, isa) * static_cast<size_t>(b.blocks) + 64;
}

std::vector<PackedQuantMatrix> pack_quant_groups(const ConvShape& s, QuantConvWeights weights, void* memory,
                                                 Isa isa) {
  const QuantGroupBlocks b = quant_group_blocks(s, isa);
  const int64_t cg = s.c / s.groups, og = s.oc / s.groups, taps = int64_t{s.kh} * s.kw;
  const int64_t depth = taps * b.window;  // of a column, [kh, kw, window]
  char* to = align64(memory);
  std::vector<PackedQuantMatrix> blocks;
  for (int64_t block = 0; block < b.blocks; ++block, to += block_bytes(s, b, isa)) {
    // What lies between groups, and what fills up, is a weight of zero.
    std::vector<char> rows(static_cast<size_t>(b.outputs * depth),
                           static_cast<char>(weights.is_signed ? 0 : 128));
    for (int64_t o = 0; o < b.outputs; ++o) {
      const int64_t channel = block * b.outputs + o, first = o / og * cg;
      const char* w = static_cast<const char*>(weights.data) + channel * cg * taps;
      for (int64_t c = 0; c < cg; ++c) {
        for (int64_t t = 0; t < taps; ++t)
          rows[static_cast<size_t>(o * depth + t * b.window + first + c)] = w[c * taps + t];
      }
    }
    QuantMatrixB matrix = {rows.data(), weights.is_signed, s.kh, s.kw * b.window, b.outputs, depth, true};
    matrix.fillers = taps * (b.window - cg);
    blocks.push_back(pack_quant_b(matrix, to, isa));
  }
  return blocks;
}

size_t quant_groups_workspace_bytes(const ConvShape& s, int threads, Isa isa) {
  // A band that is cut finer for a team needs less.
  return static_cast<size_t>(threads) * bands_of(s, quant_group_blocks(s, isa), 1).bytes() + 64;
}

void quant_groups_nhwc(const QuantConvArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  const QuantEpilogue& e = args.epilogue;
  base::check(args.x_layout == ImageLayout::nhwc, "8-bit groups are read channels-last");
  base::check(e.scales_below_one && e.offsets != nullptr && e.row_factors == nullptr &&
                  (e.output == QuantOutput::u8 || e.output == QuantOutput::s8),
              "8-bit groups give bytes and have no row factors");
  if (s.n == 0 || s.oc == 0 || s.out_h() <= 0 || s.out_w() <= 0) return;
  const QuantGroupBlocks blocks = quant_group_blocks(s, args.groups[0].isa);
  const Bands bands = bands_of(s, blocks, pool.size());
  const Grouped layer(args, blocks, bands);
  char* memory = align64(workspace);
  run_lanes(pool, layer.tasks(), [&](int64_t i, int lane) {
    layer.task(i, reinterpret_cast<uint8_t*>(memory + static_cast<size_t>(lane) * bands.bytes()));
  });
}

}  // namespace trireme::cpu
