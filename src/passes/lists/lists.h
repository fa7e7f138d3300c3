// The ordered lists of passes, and what runs them.
#pragma once

#include <vector>

#include "passes/pass.h"
#include "tensor/device.h"

namespace trireme::passes {

/// Once per model, on symbolic shapes: may transform weights (folding constants, batch norm, …).
const std::vector<Pass>& prepare_passes();
/// Once per bucket, on static shapes: fusion, layouts; must not make large constants.
const std::vector<Pass>& bucket_passes();

/// Passes over a forward graph with static shapes that may run before it is differentiated: what they
/// make has gradient rules.
const std::vector<Pass>& forward_passes();
/// Passes over the graph of a whole step that runs on such a device.
const std::vector<Pass>& step_passes(tensor::DeviceKind on = tensor::DeviceKind::cpu);
/// On a 16-bit step after the passes of the step: casts vanish into kernels of the device
/// (precision/casts.h). None for the CPU.
const std::vector<Pass>& cast_passes(tensor::DeviceKind on);
/// Passes over a program of inference on such a device, on types as it has them.
const std::vector<Pass>& inference_passes(tensor::DeviceKind on);
/// Passes over what one program runs, when it is decided what is computed again and where stages are cut.
const std::vector<Pass>& program_passes(tensor::DeviceKind on);

/// Runs a list in order. Throws not_found when options name an unknown pass.
std::vector<PassRecord> run_passes(const std::vector<Pass>& list, ir::Graph& graph,
                                   const PassOptions& options = {});

/// The graph with its inputs given the static `shapes` (in order of graph.inputs()); every node is typed
/// again and small constants that follow from the shapes are computed. Nodes whose shapes depend on data stay
/// unknown. Throws invalid_argument when a shape contradicts the declared one.
ir::Graph bind_shapes(const ir::Graph& graph, const std::vector<tensor::Dims>& shapes);
/// The same where some extents stay open, of as many shapes as there are inputs, without that check.
ir::Graph bind_open_shapes(const ir::Graph& graph, const std::vector<tensor::Shape>& shapes);

}  // namespace trireme::passes
