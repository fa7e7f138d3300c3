// What stands between the products of a step of decoding, and beside them, moves into few launches.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Of a step on a device, with static shapes: rotation, append and attention over pages become one node
/// (decode_attention), whatever the number of rows; products of few rows of one input take the norm before
/// them, and of a gated pair the gate behind them (row_linear). Only what the device's kernels take. Run
/// last, on types as the programs have them. Returns how many nodes it made.
size_t fuse_decode_steps(ir::Graph& graph);

}  // namespace trireme::passes
