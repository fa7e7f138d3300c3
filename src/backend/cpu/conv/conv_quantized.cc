// Turns an 8-bit convolution into products of row-pointer sources, one per group.
#include "backend/cpu/conv/conv_quantized.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/conv/conv_source.h"
#include "backend/cpu/quant/qgemm_driver.h"
#include "backend/cpu/device/round_up.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

int64_t taps(const ConvShape& s) { return s.kh * s.kw; }

/// Few channels: kernel rows of the padded copy are the runs, so the weights are packed as kh runs of kw * c.
bool merges(const ConvShape& s) { return conv_wants_padded_copy(s); }

/// The shape of the padded copy: pixels filled up to whole groups of 4 bytes, so that the tiles read them in
/// place.
ConvShape filled(ConvShape s) {
  s.c = (s.c + 3) / 4 * 4;
  return s;
}

int64_t packed_taps(const ConvShape& s) { return merges(s) ? s.kh : taps(s); }
int64_t packed_run(const ConvShape& s) { return merges(s) ? s.kw * filled(s).c : s.c / s.groups; }

/// The padded copy, or one pixel of zero points.
int64_t front_bytes(const ConvShape& s) { return merges(s) ? conv_padded_elements(filled(s)) : s.c; }

size_t group_bytes(const ConvShape& s, Isa isa) {
  return align64(packed_quant_bytes(packed_taps(s), packed_run(s), s.oc / s.groups, isa));
}

/// True where one pointer per kernel row serves a tile: pixels of one group, read at a constant stride.
bool walks_lines(const QuantConvArgs& a) {
  const ConvShape& s = a.shape;
  return merges(s) && s.c <= 4 && s.stride_w <= 2 && s.kh <= kRowSlots && !a.epilogue.row_factors &&
         a.epilogue.output != QuantOutput::f32 && quant_kernels(a.groups[0].isa).group == 4;
}

bool has_byte_tiles(const QuantConvArgs& a) {
  const QuantEpilogue& e = a.epilogue;
  return e.scales_below_one && e.offsets && (e.output == QuantOutput::u8 || e.output == QuantOutput::s8) &&
         quant_kernels(a.groups[0].isa).bytes[0][0][0] != nullptr;
}

/// run_line by the tiles that requantise four vectors at once. The copy's bytes are unsigned already.
void run_byte_line(const QuantConvArgs& a, const int32_t* image, int64_t oh, int64_t at) {
  const ConvShape& s = a.shape;
  const QuantEpilogue& e = a.epilogue;
  const QuantKernels& kernels = quant_kernels(a.groups[0].isa);
  const int64_t ow = s.out_w(), wp = s.w + s.pad_left + s.pad_right;
  ByteTile tile;
  tile.lda = 4 * s.stride_w;
  tile.segments = s.kh;
  tile.segment_stride = 4 * s.dilation_h * wp;
  tile.k = s.kw;
  tile.panel_stride = taps(s) * kernels.panel;
  tile.ldc = s.oc;
  tile.output_signed = e.output == QuantOutput::s8;
  tile.zero = e.zero, tile.lo = e.lo, tile.hi = e.hi;
  const uint8_t* line = reinterpret_cast<const uint8_t*>(image + oh * s.stride_h * wp);
  for (int64_t column = 0, step; column < s.oc; column += step) {
    const int64_t left = s.oc - column;
    const int vectors = left > 48 ? 4 : left > 16 ? 2 : 1;
    step = vectors * kernels.width;
    tile.n = static_cast<int>(std::min(left, step));
    tile.b = a.groups[0].data + column * taps(s);
    tile.offsets = e.offsets + column;
    tile.scale = e.scale + column;
    const int64_t high = vectors == 4 ? kByteRows / 2 : kByteRows, tiles = (ow + high - 1) / high;
    for (int64_t t = 0, begin = 0, end; t < tiles; ++t, begin = end) {
      end = ow * (t + 1) / tiles;
      tile.a = line + begin * tile.lda;
      tile.c = static_cast<uint8_t*>(a.y) + (at + begin) * s.oc + column;
      kernels.bytes[0][vectors / 2][end - begin - 1](tile);
    }
  }
}

/// One output line from the padded copy of its image; `at` is its first output pixel.
void run_line(const QuantConvArgs& a, const int32_t* image, int64_t oh, int64_t at) {
  const ConvShape& s = a.shape;
  const QuantEpilogue& e = a.epilogue;
  const QuantKernels& kernels = quant_kernels(a.groups[0].isa);
  const int64_t ow = s.out_w(), wp = s.w + s.pad_left + s.pad_right;
  const int64_t tiles = (ow + kernels.tile_rows - 1) / kernels.tile_rows;
  const int64_t element = e.output == QuantOutput::s32 ? 4 : 1;
  const int32_t* rows[kRowSlots * kRowSlots];
  QuantTile tile;
  tile.rows = rows;
  tile.segments = s.kh;
  tile.length = s.kw;
  tile.ldc = s.oc;
  tile.output = e.output;
  tile.zero = e.zero;
  tile.lo = static_cast<float>(e.lo - e.zero);
  tile.hi = static_cast<float>(e.hi - e.zero);
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t begin = ow * t / tiles, end = ow * (t + 1) / tiles;
    for (int kh = 0; kh < s.kh; ++kh) {
      rows[kh * kRowSlots] = image + (oh * s.stride_h + int64_t{kh} * s.dilation_h) * wp + begin * s.stride_w;
    }
    for (int64_t column = 0; column < s.oc; column += kernels.panel) {
      tile.n = static_cast<int>(std::min<int64_t>(kernels.panel, s.oc - column));
      tile.b = a.groups[0].data + column * taps(s);
      tile.c = static_cast<char*>(a.y) + ((at + begin) * s.oc + column) * element;
      tile.offsets = e.offsets ? e.offsets + column : nullptr;
      tile.scale = e.scale ? e.scale + column : nullptr;
      kernels.line[s.stride_w - 1][tile.n > kernels.width][end - begin - 1](tile);
    }
  }
}

void run_lines(const QuantConvArgs& a, const char* front, base::ThreadPool& pool) {
  const ConvShape& s = a.shape;
  const int64_t oh = s.out_h(), ow = s.out_w();
  const int64_t image = (s.h + s.pad_top + s.pad_bottom) * (s.w + s.pad_left + s.pad_right);
  const auto line = has_byte_tiles(a) ? run_byte_line : run_line;
  pool.for_range(s.n * oh, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      line(a, reinterpret_cast<const int32_t*>(front) + i / oh * image, i % oh, i * ow);
    }
  });
}

/// One line of the padded copy: zero points outside the image, zero bytes in the filling channels.
void copy_byte_line(const QuantConvArgs& a, int64_t image, int64_t ih, uint8_t* out) {
  const ConvShape& s = a.shape;
  const int64_t c4 = filled(s).c;
  const uint8_t zero = static_cast<uint8_t>(a.input.zero & 0xff);
  // The line tiles take signed bytes with their top bit flipped.
  const uint32_t flip = a.input.is_signed && walks_lines(a) ? 0x80808080u : 0;
  const bool inside = ih >= 0 && ih < s.h;
  const bool planes = a.x_layout == ImageLayout::nchw;
  const uint8_t* x = static_cast<const uint8_t*>(a.x) + (image * s.c * s.h + (inside ? ih : 0)) * s.w;
  if (!planes) x = static_cast<const uint8_t*>(a.x) + (image * s.h + (inside ? ih : 0)) * s.w * s.c;
  const int64_t pixel = planes ? 1 : s.c, channel = planes ? s.h * s.w : 1;
  const auto fill = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i, out += c4) {
      for (int64_t c = 0; c < c4; ++c) out[c] = static_cast<uint8_t>((c < s.c ? zero : 0) ^ flip);
    }
  };
  if (!inside) return fill(s.w + s.pad_left + s.pad_right);
  fill(s.pad_left);
  const auto widen = quant_kernels(a.groups[0].isa).widen_pixels;
  if (s.c == 3 && !planes && widen != nullptr) {
    widen(x, out, s.w, flip);
    out += 4 * s.w;
  } else if (s.c == 3) {
    for (int64_t i = 0; i < s.w; ++i, x += pixel, out += 4) {
      const uint32_t bytes = (x[0] | uint32_t{x[channel]} << 8 | uint32_t{x[2 * channel]} << 16) ^ flip;
      std::memcpy(out, &bytes, 4);
    }
  } else {
    for (int64_t i = 0; i < s.w; ++i, x += pixel, out += c4) {
      for (int64_t c = 0; c < c4; ++c) out[c] = static_cast<uint8_t>((c < s.c ? x[c * channel] : 0) ^ flip);
    }
  }
  fill(s.pad_right);
}

void copy_padded_bytes(const QuantConvArgs& a, char* out, base::ThreadPool& pool) {
  const ConvShape& s = a.shape;
  const int64_t hp = s.h + s.pad_top + s.pad_bottom;
  const int64_t line = (s.w + s.pad_left + s.pad_right) * filled(s).c;
  pool.for_range(s.n * hp, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      copy_byte_line(a, i / hp, i % hp - s.pad_top, reinterpret_cast<uint8_t*>(out) + i * line);
    }
  });
}

}  // namespace

bool quant_conv_reads_planes(const ConvShape& shape) { return merges(shape); }

size_t packed_quant_conv_bytes(const ConvShape& shape, Isa isa) {
  return group_bytes(shape, isa) * static_cast<size_t>(shape.groups) + kAlignment;
}

PackedQuantMatrix pack_quant_conv(const ConvShape& s, QuantConvWeights weights, int64_t group, void* memory,
                                  Isa isa) {
  const int64_t cg = s.c / s.groups, og = s.oc / s.groups, depth = cg * taps(s);
  const char* w = static_cast<const char*>(weights.data) + group * og * depth;
  const int64_t c4 = merges(s) ? filled(s).c : cg;
  // [og, taps, c4]: the channels-last order; what fills up is a weight of zero.
  std::vector<char> rows(static_cast<size_t>(og * taps(s) * c4),
                         static_cast<char>(weights.is_signed ? 0 : 128));
  for (int64_t o = 0; o < og; ++o) {
    for (int64_t c = 0; c < cg; ++c) {
      for (int64_t t = 0; t < taps(s); ++t) {
        rows[static_cast<size_t>((o * taps(s) + t) * c4 + c)] = w[(o * cg + c) * taps(s) + t];
      }
    }
  }
  char* out = align64(memory) + static_cast<size_t>(group) * group_bytes(s, isa);
  QuantMatrixB b = {rows.data(), weights.is_signed, packed_taps(s), packed_run(s), og, taps(s) * c4, true};
  b.fillers = taps(s) * (c4 - cg);
  return pack_quant_b(b, out, isa);
}

size_t quant_conv2d_workspace_bytes(const ConvShape& s, int threads, Isa isa) {
  const int64_t m = s.n * s.out_h() * s.out_w();
  const RowSource source =
      merges(s) ? conv_padded_source(filled(s), nullptr, 1, 0) : conv_source(s, nullptr, 1, 0, nullptr);
  const GemmPlan plan = plan_quant(source, m, s.oc / s.groups, isa, threads);
  const int64_t front = front_bytes(s);
  const auto lanes = static_cast<size_t>(s.groups > 1 ? std::max(plan.lanes, threads) : plan.lanes);
  return align64(static_cast<size_t>(front)) + lanes * plan.lane_bytes + 2 * kAlignment;
}

void quant_conv2d_nhwc(const QuantConvArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  base::check(merges(s) || args.x_layout == ImageLayout::nhwc, "only first layers read 8-bit planes");
  char* front = align64(workspace);  // padded image, or one pixel of zero points
  char* lanes = align64(front + front_bytes(s));
  if (merges(s)) {
    copy_padded_bytes(args, front, pool);
    if (walks_lines(args)) return run_lines(args, front, pool);
  } else {
    std::memset(front, args.input.zero & 0xff, static_cast<size_t>(front_bytes(s)));
  }
  const int64_t og = s.oc / s.groups;
  const int64_t element =
      args.epilogue.output == QuantOutput::u8 || args.epilogue.output == QuantOutput::s8 ? 1 : 4;
  QuantJob job;
  job.m = s.n * s.out_h() * s.out_w();
  job.input = args.input;
  job.ldc = s.oc;
  if (s.groups > 1) {
    // All groups of a tile of pixels, one after another: what finds the pixels is done once.
    job.source = conv_source(s, args.x, 1, 0, front);
    job.b = args.groups[0];
    job.groups = {args.groups, static_cast<size_t>(s.groups)};
    job.c = args.y;
    job.epilogue = args.epilogue;
    if (joins_groups(job)) return run_quant(job, plan_quant_groups(job, pool.size()), lanes, pool);
    job.groups = {};
  }
  for (int64_t g = 0; g < s.groups; ++g) {
    const int64_t first = g * og;
    job.source = merges(s) ? conv_padded_source(filled(s), front, 1, 0) : conv_source(s, args.x, 1, g, front);
    job.b = args.groups[g];
    job.c = static_cast<char*>(args.y) + first * element;
    job.epilogue = args.epilogue;
    QuantEpilogue& e = job.epilogue;
    if (e.offsets) e.offsets += first;
    if (e.row_factors) e.row_factors += first;
    if (e.scale) e.scale += first;
    if (e.real.bias) e.real.bias += first;
    if (e.real.residual) e.real.residual += first;
    run_quant(job, plan_quant(job.source, job.m, og, job.b.isa, pool.size()), lanes, pool);
  }
}

}  // namespace trireme::cpu
