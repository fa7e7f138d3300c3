// Files in 16-bit floats, made ready to be trained in f32.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// A graph with params of f16 or bf16 that have a dimension becomes the same in f32 throughout: params,
/// constants, inputs, casts, subgraphs. Weights need more bits than they are stored with to take small
/// updates; 16-bit computation is a choice of the run. Changes nothing in graphs without such params. Returns
/// how many params it widened. Throws what the types of the nodes throw where one takes no f32.
size_t widen_half_floats(ir::Graph& graph);

}  // namespace trireme::passes
