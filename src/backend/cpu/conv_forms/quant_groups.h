// 8-bit convolutions of many small groups over channels-last activations, requantisation fused.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/cpu/conv/conv_quantized.h"
#include "backend/cpu/quant/qgemm_s8.h"

namespace trireme::cpu {

/// How groups fall into blocks: `together` groups side by side fill the lanes of a vector of outputs, with
/// weights of zero between them; a group of more outputs is a block of its own.
struct QuantGroupBlocks {
  int64_t together = 1;
  int64_t blocks = 1;
  int64_t inputs = 1, outputs = 1;  // channels of a block
  int64_t window = 4;  // bytes of a pixel that a block reads: its inputs filled up to groups of 4
};

/// Blocks of a convolution that the form takes at this level: two groups or more of at most 24 outputs each,
/// more than one tap, no dilation along lines, windows that do not reach far beyond the image, and levels
/// that have tiles with byte results; else no blocks.
QuantGroupBlocks quant_group_blocks(const ConvShape& shape, Isa isa = best_isa());
bool quant_groups_fits(const ConvShape& shape, Isa isa = best_isa());

/// At most 16 times the bytes of the weights, for groups of one output.
size_t packed_quant_groups_bytes(const ConvShape& shape, Isa isa = best_isa());

/// Packs ONNX weights [oc, c / groups, kh, kw], one matrix [kh * kw * window, outputs] a block, into
/// `memory`. Allocates scratch; meant for load time. Use quant_offsets on each block: the form is for weights
/// whose zero points leave no row factors.
std::vector<PackedQuantMatrix> pack_quant_groups(const ConvShape& shape, QuantConvWeights weights,
                                                 void* memory, Isa isa = best_isa());

/// A few padded lines of the channels of one block for each member of the team.
size_t quant_groups_workspace_bytes(const ConvShape& shape, int threads, Isa isa = best_isa());

/// `args.groups` are the blocks of pack_quant_groups; results are u8 or s8, epilogue.row_factors is null and
/// epilogue.scales_below_one holds. Lines of a block's channels are copied next to each other with their
/// padding, so that a kernel row is one run of bytes; tiles of pixels by one to four vectors of outputs read
/// them. Sums are exact: the results of quant_conv2d_nhwc.
void quant_groups_nhwc(const QuantConvArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
