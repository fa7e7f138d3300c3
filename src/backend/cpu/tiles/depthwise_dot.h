// Internal: 8-bit 3 x 3 depthwise convolution by byte dot products over neighbouring pixels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::cpu {

/// Channels of a block: the bytes of one vector.
inline constexpr int kDotChannels = 64;

/// A block of up to 64 channels as the kernel reads it. A vector of sums holds the channels whose four pixels
/// lie together after interleaving: lane l, vector v, element e is channel 16 (l % (4 / groups)) + 4 v + e.
struct DotBlock {
  int8_t weights[3][2][4][64];  // [kernel row][output column of the pair][vector]: 3 taps and a zero
  int32_t offsets[4][16];
  float scale[4][16];
};

/// Output rows [begin, end) and blocks [first, last) of an image x[h, w, c] -> y[.., ow, c], kernel 3 x 3,
/// dilation 1.
struct DotBand {
  const uint8_t* x;
  int64_t h, w, c, ow;
  int64_t begin, end, first, last;
  int stride, pad_top, pad_left;
  const DotBlock* blocks;  // [ceil(c / 64)]
  uint8_t* y;
  uint8_t pad;        // the byte that stands outside the image
  bool input_signed;  // bytes are read with their top bit flipped
  bool output_signed;
  int32_t zero, lo, hi;  // of the output, quantised values
};
using DotBandFn = void (*)(const DotBand&);

/// Row groups that share a vector where a block has `channels` channels: the lanes left over take other rows.
inline int dot_groups(int64_t channels) { return channels > 32 ? 1 : channels > 16 ? 2 : 4; }

}  // namespace trireme::cpu
