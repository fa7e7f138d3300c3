// Kernel selection: a kernel of the device, kernels of the node's expansion, or a CPU kernel whose operands
// and results are copied between host and device.
#pragma once

#include <string>
#include <vector>

#include "compile/program.h"

namespace trireme::compile {

/// A kernel and where it runs; `kernel` is null if there is none.
struct Choice {
  const ir::Kernel* kernel = nullptr;
  bool on_host = false;  ///< the CPU's kernel, in a program of another device
};

/// Returns the first kernel of options.on that accepts the node; for a device that has none, the first CPU
/// kernel that does. Appends to `refusals` why the kernels tried before refused.
Choice choose(const ir::Node& node, const ir::NodeView& view, const CompileOptions& options,
              std::vector<std::string>& refusals);

/// Replaces nodes by their expansions where no kernel runs them and, for a device, where only the host could
/// run the node but the device runs every part of the expansion. Throws unsupported naming a node that
/// nothing runs, or that only the host runs while options.host_fallback is off.
ir::Graph with_kernels(ir::Graph graph, const CompileOptions& options);

}  // namespace trireme::compile
