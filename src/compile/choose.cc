// Chooses the kernel of a node: the device's own, those of its expansion, or the CPU's with staged operands.
#include "compile/choose.h"

namespace trireme::compile {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

const ir::Kernel* first_of(tensor::DeviceKind on, const Node& node, const ir::NodeView& view,
                           std::vector<std::string>& refusals) {
  for (const ir::Kernel& k : node.op->kernels) {
    if (k.on != on) continue;
    const ir::Refusal refusal = k.refuse ? k.refuse(view) : std::nullopt;
    if (!refusal) return &k;
    refusals.push_back(k.name + ": " + *refusal);
  }
  return nullptr;
}

const ir::Kernel* of_device(const Node& node, const ir::NodeView& view, const CompileOptions& options,
                            std::vector<std::string>& refusals) {
  if (!options.only_kernel.empty()) {
    for (const ir::Kernel& k : node.op->kernels) {
      if (k.on == options.on && k.name == options.only_kernel && !(k.refuse && k.refuse(view))) return &k;
    }
  }
  return first_of(options.on, node, view, refusals);
}

/// Whether all nodes that `node` expands to, recursively, run on the device. Tried on a graph that contains
/// only this node.
bool parts_run_on_device(const Graph& graph, const Node& node, const CompileOptions& options, int depth) {
  constexpr int kDeepest = 4;
  if (!node.op->schema.expand || depth > kDeepest) return false;
  Graph trial;
  Node alone = node;
  for (ValueId& id : alone.in) {
    if (id == ir::kNoValue) continue;
    const tensor::Tensor* known = graph.known(id);
    id = known != nullptr ? trial.add_constant(*known)
                          : trial.add_input(std::to_string(ir::index(id)), graph.type(id));
  }
  alone.out = trial.add(*node.op, alone.in, node.attrs, node.out.size(), node.from);
  for (size_t i = 0; i < node.out.size(); ++i) {
    if (node.out[i] == ir::kNoValue) alone.out[i] = ir::kNoValue;
  }
  const size_t first = trial.nodes().size();
  node.op->schema.expand(trial, alone);
  for (size_t n = first; n < trial.nodes().size(); ++n) {
    const Node& part = trial.nodes()[n];
    if (part.op == nullptr || part.op->schema.is_view) continue;
    std::vector<std::string> refusals;
    if (of_device(part, trial.view(part), options, refusals) != nullptr) continue;
    if (!parts_run_on_device(trial, part, options, depth + 1)) return false;
  }
  return true;
}

std::string joined(const std::vector<std::string>& refusals) {
  std::string all;
  for (const std::string& r : refusals) all += "; " + r;
  return all;
}

/// True if the node is to be replaced by its expansion.
bool is_expanded(const Graph& graph, const Node& node, const CompileOptions& options) {
  std::vector<std::string> refusals;
  const Choice choice = choose(node, graph.view(node), options, refusals);
  if (choice.kernel != nullptr && !choice.on_host) return false;
  if (choice.on_host) {
    if (parts_run_on_device(graph, node, options, 0)) return true;
    if (options.host_fallback) return false;
    std::vector<std::string> on_device;
    of_device(node, graph.view(node), options, on_device);
    base::fail_unsupported("no ", tensor::name_of(options.on), " kernel runs node '", node.from, "' (",
                           node.op_name(), "), and the host fallback is off", joined(on_device));
  }
  if (node.op->schema.expand) return true;
  base::fail_unsupported("no ", tensor::name_of(options.on), " kernel runs node '", node.from, "' (",
                         node.op_name(), ")", joined(refusals));
}

}  // namespace

Choice choose(const Node& node, const ir::NodeView& view, const CompileOptions& options,
              std::vector<std::string>& refusals) {
  if (const ir::Kernel* own = of_device(node, view, options, refusals)) return {own, false};
  if (options.on == tensor::DeviceKind::cpu) return {};
  std::vector<std::string> on_host;
  const ir::Kernel* host = first_of(tensor::DeviceKind::cpu, node, view, on_host);
  for (const std::string& reason : on_host) refusals.push_back("host:" + reason);
  return {host, host != nullptr};
}

Graph with_kernels(Graph graph, const CompileOptions& options) {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      const auto id = ir::NodeId(static_cast<uint32_t>(n));
      const Node node = graph.node(id);
      if (node.op == nullptr || node.op->schema.is_view || !is_expanded(graph, node, options)) continue;
      const std::vector<ValueId> results = node.op->schema.expand(graph, node);
      for (size_t i = 0; i < results.size() && i < node.out.size(); ++i) {
        if (node.out[i] != ir::kNoValue) graph.replace_uses(node.out[i], results[i]);
      }
      graph.erase(id);
      changed = true;
    }
    if (changed) graph.sort();
  }
  return graph;
}

}  // namespace trireme::compile
