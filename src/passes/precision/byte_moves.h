// Moving of quantized values as bytes instead of floats.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// An operator that only rearranges elements (concat, slice, split, transpose, ...) commutes with
/// quantization by one scale for the whole tensor. So quantize(move(dequantize(a), dequantize(b))) becomes a
/// move of bytes that are requantized before it, which use_byte_maps turns into tables or removes; and
/// move(dequantize(a)) becomes dequantize(move(a)).
size_t move_bytes(ir::Graph& graph);

}  // namespace trireme::passes
