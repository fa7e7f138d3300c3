// Operands of block_attention: what a decoding step does from the input of a layer's attention to its result.
#pragma once

#include "ops/attention/decode_attention.h"
#include "ops/blocks/blocks.h"

namespace trireme::ops {

enum BlockAttentionOperand : size_t {
  kBaX,
  kBaQuery,
  kBaKey,
  kBaValue,
  kBaKeyPages,
  kBaValuePages,
  kBaSlots,
  kBaTable,
  kBaLengths,
  kBaStarts,
  kBaCosine,
  kBaSine,
  kBaPositions,
  kBaNorm,
  kBaQueryBias,
  kBaKeyBias,
  kBaValueBias,
  kBaOperands
};

/// Extents of a node whose shapes are static.
struct BlockAttentionPlan {
  DecodeAttentionPlan step;
  BlockMatrix query, key, value;
  int64_t rows = 0;
  BlockRows form = BlockRows::q8;
  float epsilon = 0;
};
BlockAttentionPlan plan_block_attention(const ir::NodeView& node);

}  // namespace trireme::ops
