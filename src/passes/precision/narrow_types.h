// The narrow element types that changes of precision look for.
#pragma once

#include "tensor/dtype.h"

namespace trireme::passes {

inline bool is_half(tensor::DType t) { return t == tensor::DType::f16 || t == tensor::DType::bf16; }
inline bool is_8_bit(tensor::DType t) { return t == tensor::DType::i8 || t == tensor::DType::u8; }

}  // namespace trireme::passes
