// Casts to and from 16 bits that the kernels beside them do as they read and write.
#pragma once

#include "ir/graph.h"
#include "tensor/device.h"

namespace trireme::passes {

/// Nodes that compute in f32 between casts read and write the 16-bit values themselves, where a kernel of
/// `device` takes them so: elementwise nodes and fused chains operand by operand (a single node becomes a
/// chain of one step), softmax, norms and dropout where all their results may follow. A result is narrowed
/// only if all its readers cast it to one type, so that no bit changes. Run last, on the graph of a whole
/// step. Nothing is changed for the CPU, whose vector kernels read f32. Returns how many nodes it changed.
size_t absorb_casts(ir::Graph& graph, tensor::DeviceKind device);

}  // namespace trireme::passes
