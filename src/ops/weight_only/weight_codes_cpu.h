// Stored weights as the CPU's kernels name them.
#pragma once

#include "backend/cpu/dense/weight_rows.h"
#include "ops/weight_only/weight_only.h"

namespace trireme::ops {

inline cpu::WeightCodes weight_codes(const WeightForm& form) {
  switch (form.type) {
    case tensor::DType::f8e4m3fn: return cpu::WeightCodes::e4m3;
    case tensor::DType::bf16: return cpu::WeightCodes::bf16;
    case tensor::DType::f16: return cpu::WeightCodes::f16;
    default: return form.bits == 8 ? cpu::WeightCodes::int8 : cpu::WeightCodes::int4;
  }
}

/// Groups as the kernel walks along rows that have none.
inline int64_t weight_stride(const WeightForm& form, int64_t k) {
  if (form.has_scales()) return form.group;
  return k % 128 == 0 ? 128 : 32;
}

/// `rows` for rows of 16 bits, but for weights (operand `weights`) that have 16 bits, too: they are read as
/// they are or not at all.
ir::Kernel via_stored_f32(const ir::Kernel& rows, size_t weights);

}  // namespace trireme::ops
