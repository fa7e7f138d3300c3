// Functions of one quantized tensor become tables.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// quantize(f(dequantize(x), dequantize(x), ...)) with f of elementwise nodes, constants of one element and
/// further quantizations between them, all of one scale a tensor: byte_map(x). The table is what the nodes
/// compute of all 256 bytes, so results keep their bits. A table that changes nothing vanishes.
size_t use_byte_maps(ir::Graph& graph);

}  // namespace trireme::passes
