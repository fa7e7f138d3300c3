// The table of all operators, and direct evaluation of one node outside a program.
#pragma once

#include <vector>

#include "base/threads/thread_pool.h"
#include "ir/graph.h"

namespace trireme::ops {

/// All operators with their kernels. Built on first use, then constant.
const ir::OpTable& table();

/// Who computes a node outside a program, and what its results and workspace may take in all.
struct HostRun {
  base::ThreadPool& pool;
  int64_t max_bytes = INT64_MAX;
  std::vector<size_t> fed = {};  // operands that kernels may not take for constants
  HostRun(base::ThreadPool& threads, int64_t most_bytes = INT64_MAX) : pool(threads), max_bytes(most_bytes) {}
};

/// Runs one op on host tensors with the first CPU kernel that accepts; allocates the results. Used to fold
/// constants and for ops whose result shape depends on data. An undefined tensor is an absent operand. Throws
/// unsupported with every kernel's reason if none accepts, exhausted before anything is allocated where the
/// results and the kernel's workspace need more than `on` allows: extents may come from a stranger's data.
std::vector<tensor::Tensor> evaluate(const ir::OpDef& op, const ir::Attrs& attrs,
                                     const std::vector<tensor::Tensor>& in, size_t out_count,
                                     const HostRun& on);

/// The first CPU kernel that accepts `node`, or null; `reasons` (if given) collects why the ones before it
/// refused.
const ir::Kernel* choose_kernel(const ir::OpDef& op, const ir::NodeView& node, tensor::DeviceKind on,
                                std::vector<std::string>* reasons = nullptr);

}  // namespace trireme::ops
