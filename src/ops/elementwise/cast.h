// Conversion of element types: one chunk at a time from any type to any other.
#pragma once

#include "ir/kernel.h"
#include "ops/elementwise/small_float.h"

namespace trireme::ops {

struct CastRule {
  tensor::DType from, to;
  bool saturate = true;  ///< of the 8-bit floats
  ScaleRounding rounding = ScaleRounding::up;
};

/// Converts elements [begin, end) of `in` to `out`; begin is a multiple of 4, so packed elements start on a
/// byte. Floats to integers truncate and clamp to the range, NaN becomes 0; integers wrap.
void cast_elements(const CastRule& rule, const void* in, void* out, int64_t begin, int64_t end);

/// Element type by the number an ONNX tensor proto gives it. Throws unsupported for strings and complex
/// numbers.
tensor::DType dtype_from_onnx(int64_t number);

std::vector<ir::Kernel> cast_cpu_kernels();

/// Whether result 0 is operand 0 in another element type, by an attribute or as that of operand 1.
inline bool is_cast(const ir::OpSchema& op) { return op.name == "cast" || op.name == "cast_like"; }

}  // namespace trireme::ops
