// Walks the output rows of a depthwise convolution and hands each to the row kernel of the chosen level.
#include "backend/cpu/conv/depthwise_nhwc.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/tiles/qgemm_kernels.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

// The input rows of a band should stay in half of a 1 MiB second-level cache while the channels walk over
// them.
constexpr int64_t kBandBytes = 384 * 1024;

/// The geometry of image `image`; elements of `element` bytes.
DepthwiseBand band_of(const ConvShape& s, const void* x, void* y, int64_t image, int64_t element) {
  DepthwiseBand band = {};
  band.x = static_cast<const char*>(x) + image * s.h * s.w * s.c * element;
  band.y = static_cast<char*>(y) + image * s.out_h() * s.out_w() * s.c * element;
  band.h = s.h, band.w = s.w, band.c = s.c, band.ow = s.out_w();
  band.kh = s.kh, band.kw = s.kw;
  band.stride_h = s.stride_h, band.stride_w = s.stride_w;
  band.dilation_h = s.dilation_h, band.dilation_w = s.dilation_w;
  band.pad_top = s.pad_top, band.pad_left = s.pad_left;
  return band;
}

void run_band(const DepthwiseArgs& a, const DenseKernels& kernels, int64_t image, int64_t begin,
              int64_t end) {
  const ConvShape& s = a.shape;
  const int64_t row = s.out_w() * s.c;
  DepthwiseBand band = band_of(s, a.x, a.y, image, sizeof(float));
  band.type = DepthwiseType::f32;
  band.begin = begin, band.end = end;
  const bool clamps = clamp_bounds(a.epilogue, band.lo, band.hi);
  const bool after = a.epilogue.act_before_residual;
  const float* residual = a.epilogue.residual ? a.epilogue.residual + image * s.out_h() * row : nullptr;
  band.weights = a.weights, band.bias = a.epilogue.bias;
  band.residual = clamps || !after ? residual : nullptr;
  band.act_before_residual = after;
  kernels.depthwise_band(band);
  if (clamps) return;
  kernels.activate({static_cast<float*>(band.y) + begin * row, row, end - begin, row,
                    after && residual ? residual + begin * row : nullptr},
                   a.epilogue);
}

DotBlock* aligned_blocks(const void* memory) {
  return reinterpret_cast<DotBlock*>((reinterpret_cast<uintptr_t>(memory) + 63) & ~uintptr_t{63});
}

bool fits_dots(const ConvShape& s, Isa isa) {
  return quant_kernels(isa).dot_band != nullptr && s.kh == 3 && s.kw == 3 && s.dilation_h == 1 &&
         s.dilation_w == 1 && s.stride_h == s.stride_w && s.stride_w <= 2 && s.pad_left <= 2;
}

/// Calls run(image, begin, end) over bands of output rows that keep their input in the second-level cache.
template <class Run>
void for_bands(const ConvShape& s, int64_t element, base::ThreadPool& pool, const Run& run) {
  base::check(s.groups == s.c && s.oc == s.c, "depthwise convolution needs one group per channel");
  const int64_t oh = s.out_h();
  if (oh <= 0 || s.n == 0) return;
  int64_t rows = std::clamp<int64_t>(kBandBytes / (s.w * s.c * element * s.stride_h), 1, oh);
  // A piece should outweigh the microsecond that handing it out costs, and the team wants several pieces a
  // member.
  const int64_t row_flop = 2 * s.out_w() * s.c * s.kh * s.kw;
  const int64_t least = std::min(oh, 1 + 60000 / (row_flop + 1));
  if (pool.size() > 1) rows = std::max(least, std::min(rows, s.n * oh / (4 * pool.size())));
  const int64_t bands = (oh + rows - 1) / rows;
  pool.run(s.n * bands, [&](int64_t i) {
    const int64_t band = i % bands;
    run(i / bands, oh * band / bands, oh * (band + 1) / bands);
  });
}

/// Tasks are bands of an even number of rows, and blocks of channels where several threads share the work.
void run_dots(const QuantDepthwiseArgs& args, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  const QuantEpilogue& e = args.epilogue;
  const int64_t oh = s.out_h(), blocks = (s.c + kDotChannels - 1) / kDotChannels;
  if (oh <= 0 || s.n == 0) return;
  const int64_t shares = pool.size() == 1 ? 1 : blocks;
  int64_t rows = std::clamp<int64_t>(kBandBytes / (s.w * s.c * s.stride_h), 2, oh + 1);
  const int64_t wanted = pool.size() == 1 ? 1 : (4 * pool.size() + s.n * shares - 1) / (s.n * shares);
  rows = std::max<int64_t>(2, std::min(rows, (oh + wanted - 1) / wanted) / 2 * 2);
  const int64_t bands = (oh + rows - 1) / rows;
  const int64_t ow = s.out_w();
  const DotBandFn run = quant_kernels(args.isa).dot_band;
  pool.run(s.n * bands * shares, [&](int64_t i) {
    const int64_t share = i % shares, band = i / shares % bands, image = i / shares / bands;
    DotBand d;
    d.x = static_cast<const uint8_t*>(args.x) + image * s.h * s.w * s.c;
    d.y = static_cast<uint8_t*>(args.y) + image * oh * ow * s.c;
    d.h = s.h, d.w = s.w, d.c = s.c, d.ow = ow;
    d.begin = band * rows, d.end = std::min(oh, (band + 1) * rows);
    d.first = blocks * share / shares, d.last = blocks * (share + 1) / shares;
    d.stride = s.stride_w, d.pad_top = s.pad_top, d.pad_left = s.pad_left;
    d.blocks = aligned_blocks(args.dots);
    d.pad = static_cast<uint8_t>(args.input.zero & 0xff);
    d.input_signed = args.input.is_signed;
    d.output_signed = e.output == QuantOutput::s8;
    d.zero = e.zero, d.lo = e.lo, d.hi = e.hi;
    run(d);
  });
}

}  // namespace

void pack_depthwise(const ConvShape& shape, const float* weights, float* out) {
  const int64_t taps = shape.kh * shape.kw;
  for (int64_t c = 0; c < shape.c; ++c) {
    for (int64_t t = 0; t < taps; ++t) out[t * shape.c + c] = weights[c * taps + t];
  }
}

void depthwise_nhwc(const DepthwiseArgs& args, base::ThreadPool& pool) {
  const DenseKernels& kernels = dense_kernels(args.isa);
  for_bands(args.shape, sizeof(float), pool,
            [&](int64_t image, int64_t begin, int64_t end) { run_band(args, kernels, image, begin, end); });
}

void pack_quant_depthwise(const QuantDepthwiseWeights& w, QuantInput input, QuantDepthwisePacked out) {
  const int64_t taps = w.shape.kh * w.shape.kw;
  base::require(taps <= 256, "8-bit depthwise kernels have at most 256 taps, not ", taps);
  for (int64_t c = 0; c < w.shape.c; ++c) {
    int32_t sum = 0;
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t at = c * taps + t;
      const int32_t byte =
          w.is_signed ? static_cast<const int8_t*>(w.data)[at] : static_cast<const uint8_t*>(w.data)[at];
      const int32_t value = byte - (w.zero ? w.zero[c] : 0);
      out.weights[t * w.shape.c + c] = static_cast<float>(value);
      sum += value;
    }
    out.sums[c] = (w.bias ? w.bias[c] : 0) - input.zero * sum;
  }
}

size_t packed_depthwise_dot_bytes(const ConvShape& shape) {
  return static_cast<size_t>((shape.c + kDotChannels - 1) / kDotChannels) * sizeof(DotBlock) + 64;
}

bool pack_depthwise_dot(const QuantDepthwiseWeights& w, QuantInput input, const float* scale, void* memory,
                        Isa isa) {
  if (!fits_dots(w.shape, isa)) return false;
  DotBlock* blocks = aligned_blocks(memory);
  std::memset(static_cast<void*>(blocks), 0, packed_depthwise_dot_bytes(w.shape) - 64);
  const int32_t level = input.zero + (input.is_signed ? 128 : 0);  // of the zero point, as bytes are read
  for (int64_t c = 0; c < w.shape.c; ++c) {
    const int64_t first = c / kDotChannels * kDotChannels, i = c - first;
    const int lanes = 4 / dot_groups(w.shape.c - first);  // of one row group
    DotBlock& block = blocks[c / kDotChannels];
    const int64_t v = i % 16 / 4;
    int32_t sum = 0;
    for (int64_t lane = i / 16; lane < 4; lane += lanes) {
      const int64_t at = 4 * lane + i % 4;  // of the channel in vector v
      sum = 0;
      for (int tap = 0; tap < 9; ++tap) {
        const int64_t k = c * 9 + tap;
        const int32_t byte =
            w.is_signed ? static_cast<const int8_t*>(w.data)[k] : static_cast<const uint8_t*>(w.data)[k];
        const int32_t value = byte - (w.zero ? w.zero[c] : 0);
        if (value < -128 || value > 127) return false;
        sum += value;
        block.weights[tap / 3][0][v][4 * at + tap % 3] = static_cast<int8_t>(value);
        block.weights[tap / 3][1][v][4 * at + tap % 3 + 1] = static_cast<int8_t>(value);
      }
      block.offsets[v][at] = (w.bias ? w.bias[c] : 0) - level * sum;
      block.scale[v][at] = scale[c];
    }
  }
  return true;
}

void quant_depthwise_nhwc(const QuantDepthwiseArgs& args, base::ThreadPool& pool) {
  const QuantEpilogue& e = args.epilogue;
  const ConvShape& s = args.shape;
  base::check(e.output == QuantOutput::u8 || e.output == QuantOutput::s8,
              "8-bit depthwise gives 8-bit outputs");
  if (args.dots != nullptr && e.scales_below_one) {
    return run_dots(args, pool);
  }
  const DenseKernels& kernels = dense_kernels(args.isa);
  for_bands(s, 1, pool, [&](int64_t image, int64_t begin, int64_t end) {
    DepthwiseBand band = band_of(s, args.x, args.y, image, 1);
    band.type = args.input.is_signed ? DepthwiseType::s8 : DepthwiseType::u8;
    band.begin = begin, band.end = end;
    band.weights = args.weights, band.sums = e.offsets, band.scale = e.scale;
    band.pad = static_cast<float>(args.input.zero);
    band.zero = e.zero;
    band.lo = static_cast<float>(e.lo - e.zero), band.hi = static_cast<float>(e.hi - e.zero);
    kernels.depthwise_band(band);
  });
}

}  // namespace trireme::cpu
