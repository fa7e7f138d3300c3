// Winograd form of f32 convolutions along one axis, over channels-last activations: 1-D convolutions, the
// parts of separable ones (1 x 7 and 7 x 1), those over time of video networks, large kernels. Epilogue
// fused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/conv/conv_nhwc.h"

namespace trireme::cpu {

/// True for three taps or more along an axis of stride 1, the line, and any along the other; one group, any
/// dilation, no negative padding, and so few taps and channels that blocks of tiles fit into a cache.
bool winograd_lines_fits(const ConvShape& shape);

/// Multiply-adds a channel pair of an image takes, where the direct form takes one for each output and tap.
int64_t winograd_lines_products(const ConvShape& shape);

/// Transformed weights: one packed right operand [parts c, oc] for each point of a tile.
struct PackedWinogradLines {
  const float* data = nullptr;
  int64_t point_floats = 0;
  Isa isa = Isa::portable;
};

/// 1.3 to 2.3 times the bytes of the weights, and padding.
size_t packed_winograd_lines_bytes(const ConvShape& shape, Isa isa = best_isa());

/// Transforms ONNX weights [oc, c, kh, kw] into `memory` with the team. Scratch is one point's matrix.
PackedWinogradLines pack_winograd_lines(const ConvShape& shape, const float* weights, void* memory,
                                        base::ThreadPool& pool, Isa isa = best_isa());

struct WinogradLinesArgs {
  ConvShape shape;
  const float* x = nullptr;
  PackedWinogradLines weights;
  float* y = nullptr;
  Epilogue epilogue;
};

size_t winograd_lines_workspace_bytes(const ConvShape& shape, int threads);

/// F(m, r) of Winograd's minimal filters (Lavin & Gray 2015) along the line: m neighbouring outputs of r taps
/// cost m + r - 1 products a channel pair instead of m r. Points are 0, infinity and pairs of opposite
/// numbers: two pairs for three taps (m = 4), three for four to six (m = 5, 4, 3), four for seven (m = 4).
/// Longer lines are cut into such pieces, whose products are summed before the way back, and so are the taps
/// of the other axis. Each output is the same chain of operations whatever the team, the blocks or its batch
/// mates. With dilation d the outputs of one remainder modulo d form a dense convolution of their own.
void winograd_lines_nhwc(const WinogradLinesArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
