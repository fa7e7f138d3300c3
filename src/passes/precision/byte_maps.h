// Replacement of functions of one 8-bit tensor by tables of 256 entries.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites quantize(f(dequantize(x), dequantize(x), ...)) as byte_map(x), where f consists of elementwise
/// nodes, constants of one element and further quantizations, all with one scale for the whole tensor. The
/// table holds what the nodes compute for all 256 bytes, so results keep their bits. A table that maps each
/// byte to itself is removed.
size_t use_byte_maps(ir::Graph& graph);

}  // namespace trireme::passes
