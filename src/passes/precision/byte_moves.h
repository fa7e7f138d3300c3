// Quantized values are moved as bytes.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// What only rearranges elements (concat, slice, split, transpose, ...) commutes with quantization of one
/// scale a tensor: quantize(move(dequantize(a), dequantize(b))) moves bytes that are quantized again before,
/// which use_byte_maps makes tables or nothing; move(dequantize(a)) of one scale is dequantize(move(a)).
size_t move_bytes(ir::Graph& graph);

}  // namespace trireme::passes
