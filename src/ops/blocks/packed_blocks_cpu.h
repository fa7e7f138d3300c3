// Matrices in blocks as the CPU's kernels read them: packed once for all programs and instances of a model.
#pragma once

#include <memory>

#include "backend/cpu/blocks/block_pack.h"
#include "ops/blocks/blocks.h"
#include "ops/pack_memory.h"

namespace trireme::ops {

/// A packed matrix that keeps its memory; one of floats keeps the tensor in which it lies.
struct PackedMatrix {
  PackMemory memory;
  cpu::PackedBlocks blocks;
  tensor::Tensor source;
};

/// Operand `operand` of a node, its `number`-th matrix, packed in place of the matrix. Null while it has no
/// content.
std::shared_ptr<const PackedMatrix> packed_matrix(const ir::KernelInit& init, size_t operand,
                                                  size_t number = 0);

/// Its format and extents, without its place.
cpu::PackedBlocks packed_form(const ir::NodeView& node, size_t operand, size_t number = 0);

/// Why it cannot be packed.
ir::Refusal refuse_packed(const ir::NodeView& node, size_t operand);

}  // namespace trireme::ops
