// Which kernel runs a node: the device's own, what its expansion has, or the CPU's over staged operands.
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

/// The first kernel of options.on that takes the node; on devices, then the first of the CPU's. `refusals`
/// collects why others did not.
Choice choose(const ir::Node& node, const ir::NodeView& view, const CompileOptions& options,
              std::vector<std::string>& refusals);

/// Rewrites nodes by their `expand`: those that no kernel runs, and on devices those that only the host would
/// run while the device runs all parts. Throws unsupported naming a node that nothing runs, or that only the
/// host runs where options.host_fallback is off.
ir::Graph with_kernels(ir::Graph graph, const CompileOptions& options);

}  // namespace trireme::compile
