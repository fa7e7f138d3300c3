// Removal of casts to and from 16 bits where the kernels beside them can read or write 16 bits.
#pragma once

#include "ir/graph.h"
#include "tensor/device.h"

namespace trireme::passes {

/// Makes nodes that compute in f32 between casts read and write the 16-bit values themselves, where a kernel
/// of `device` accepts that: elementwise nodes and fused chains operand by operand (a single node becomes a
/// chain of one step); softmax, norms and dropout if all their results may be 16-bit. A result becomes 16-bit
/// only if all its readers cast it to the same type, so that no bit changes. Runs last, on the graph of a
/// whole step. Changes nothing for the CPU, whose vector kernels read f32. Returns the number of nodes
/// changed.
size_t absorb_casts(ir::Graph& graph, tensor::DeviceKind device);

}  // namespace trireme::passes
