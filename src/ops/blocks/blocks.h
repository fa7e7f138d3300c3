// Weights in the block formats of GGUF files under operators: a matrix [n, k] is u8 [n, bytes of a row].
#pragma once

#include <map>

#include "ir/graph.h"
#include "ir/kernel.h"
#include "tensor/blocks/block_format.h"

namespace trireme::ops {

/// Operand i of a node, or no value.
inline ir::ValueId operand_or_none(const ir::Node& node, size_t i) {
  return i < node.in.size() ? node.in[i] : ir::kNoValue;
}

/// A matrix in blocks.
struct BlockMatrix {
  const tensor::BlockFormat* format = nullptr;
  int64_t n = 0, k = 0;
  int64_t row_bytes() const { return format->row_bytes(k); }
};

/// The format of the `number`-th matrix of a node: its own of `formats` where matrices have several, else
/// `format`.
std::string block_format_of(const ir::Attrs& attrs, size_t number = 0);

/// The attribute that names a format.
ir::AttrSpec block_format_attr();

/// Says so, of all matrices in their order.
void set_block_formats(ir::Attrs& attrs, const std::vector<std::string>& formats);

/// The matrix of a node whose operand `i`, its `number`-th matrix, is in the format that its attributes name.
/// Throws invalid_argument for an unknown format, for another element type and for rows that are no whole
/// blocks.
BlockMatrix block_matrix(const ir::NodeView& node, size_t i, size_t number = 0);

/// How rows of x meet weights in blocks.
enum class BlockRows {
  f32,   ///< as they are
  q8,    ///< in 8 bits: 32 neighbours share the scale that makes the largest of them 127
  bf16,  ///< rounded to bf16, for weights in bf16
};
/// What the attributes of a product say. Throws invalid_argument where its formats do not meet such rows.
BlockRows block_rows(const ir::Attrs& attrs);
std::string_view to_string(BlockRows rows);

/// The rows that meet a format where `wanted` are asked for: codes meet rows in 8 bits unless these are to
/// stay f32, floats of 16 bits f32 rows unless both are to be bf16.
BlockRows rows_for(const tensor::BlockFormat& format, BlockRows wanted);

/// Operands of block_linear and of block_gather.
enum BlockLinearOperand : size_t { kBlX, kBlWeights, kBlBias, kBlNorm, kBlResidual };
enum BlockGatherOperand : size_t { kBgWeights, kBgIndices };

/// Extents of a block_linear.
struct BlockLinearExtents {
  int64_t rows = 0;
  BlockMatrix w;
  BlockRows form = BlockRows::q8;
};
BlockLinearExtents block_linear_extents(const ir::NodeView& node);

/// How many products of one x a block_linears has at most: q, k, v of attention and two of a gate are fewer.
inline constexpr size_t kMostJoined = 4;

/// How many products a block_linears with so many results has: two give a gate's one.
size_t joined_products(const ir::Attrs& attrs, size_t results);

/// Extents of a block_linears: x, then a matrix for each product, then their biases, then the norm's scale.
struct BlockLinearsExtents {
  int64_t rows = 0;
  size_t count = 0;
  BlockRows form = BlockRows::q8;
  bool is_gated = false;
  size_t weights(size_t i) const { return 1 + i; }
  size_t bias(size_t i) const { return 1 + count + i; }
  size_t norm() const { return 1 + 2 * count; }
};
BlockLinearsExtents block_linears_extents(const ir::NodeView& node);

/// Epsilon of the norm before block_linear(s).
float block_epsilon(const ir::Attrs& attrs);

/// The operands that CPU kernels of a node read in packed form alone: of products, and of lookups that share
/// them.
std::vector<size_t> packed_operands(const ir::Node& node);

/// The constant matrices of a graph that nothing but packed_operands() reads, and their formats; small ones,
/// which passes compare, left out.
std::map<ir::ValueId, const tensor::BlockFormat*> packed_weights(const ir::Graph& graph);

/// A packed matrix in place of the one it was made of.
struct HeldBlocks {
  tensor::Tensor address;  ///< of its type and extents, without memory: reading it ends the process
  std::shared_ptr<const void> packed;  ///< what kernels find by that address, which holds it too
};
/// Packs `weights` for the CPU kernels of nodes that read them as packed_operands().
HeldBlocks hold_packed(const tensor::Tensor& weights, const tensor::BlockFormat& format,
                       base::SharedCache& packs, int threads);

std::vector<ir::Kernel> dequantize_blocks_cpu_kernels();
std::vector<ir::Kernel> block_linear_cpu_kernels();
std::vector<ir::Kernel> block_linears_cpu_kernels();
std::vector<ir::Kernel> block_gather_cpu_kernels();

}  // namespace trireme::ops
