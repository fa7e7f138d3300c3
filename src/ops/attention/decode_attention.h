// Operands of decode_attention, which is rotation, append and attention over pages in one.
#pragma once

#include "ops/attention/paged.h"

namespace trireme::ops {

enum DecodeAttentionOperand : size_t {
  kDaQueries,
  kDaKeys,
  kDaValues,
  kDaKeyPages,
  kDaValuePages,
  kDaSlots,
  kDaTable,
  kDaLengths,
  kDaStarts,
  kDaCosine,
  kDaSine,
  kDaPositions,
  kDaOperands
};

/// Extents of a node whose shapes are static.
struct DecodeAttentionPlan {
  PagedPlan attention;
  int64_t angle_rows = 0, rotated = 0;  ///< channels of a head that rotate; 0 without angles
  bool interleaved = false;
};
DecodeAttentionPlan plan_decode_attention(const ir::NodeView& node);

}  // namespace trireme::ops
