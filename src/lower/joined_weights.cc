// Shares weights that passes have concatenated.
#include "lower/joined_weights.h"

#include <algorithm>

#include "base/threads/thread_pool.h"
#include "ops/table.h"
#include "tensor/joined.h"

namespace trireme::lower {
namespace {

using tensor::Tensor;

Tensor computed(const ir::Node& node, const std::vector<Tensor>& parts) {
  base::ThreadPool pool(1);
  return ops::evaluate(*node.op, node.attrs, parts, 1, pool)[0];
}

/// The parts belong to a model that outlives its packs, so their addresses identify the result.
Tensor shared(const ir::Node& node, const std::vector<Tensor>& parts, base::SharedCache& packs, bool later) {
  std::string key = base::concat("joined ", node.attrs.to_string());
  tensor::Dims dims = parts[0].dims();
  const auto axis = static_cast<size_t>(node.attrs.get_int("axis", 0));
  dims[axis] = 0;
  for (const Tensor& part : parts) {
    key += " " + ir::pack_key(part, "");
    dims[axis] += part.dims()[axis];
  }
  if (later) key += " later";
  const auto bytes = packs.get<std::byte>(
      key, [&] { return later ? tensor::joined_later(parts, axis).owner() : computed(node, parts).owner(); });
  const int64_t count = tensor::element_count(dims) * 4;
  return Tensor::view(parts[0].dtype(), dims, {bytes.get(), static_cast<size_t>(count)}, bytes);
}

}  // namespace

void join_weights(ir::Graph& graph, base::SharedCache& packs, bool later) {
  const std::vector<std::vector<ir::NodeId>> uses = graph.uses();
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const ir::Node node = graph.nodes()[n];
    if (node.op == nullptr || node.op_name() != "concat") continue;
    const std::vector<ir::NodeId>& readers = uses[ir::index(node.out[0])];
    const bool is_weight = !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](ir::NodeId r) {
      return graph.node(r).op_name() == "linear" && graph.node(r).in[0] != node.out[0];
    });
    std::vector<Tensor> parts;
    for (ir::ValueId id : node.in) {
      if (const Tensor* known = graph.known(id)) parts.push_back(*known);
    }
    if (!is_weight || parts.size() != node.in.size() || parts[0].dtype() != tensor::DType::f32) continue;
    const Tensor whole = parts[0].rank() == 2 ? shared(node, parts, packs, later) : computed(node, parts);
    graph.replace_uses(node.out[0], graph.add_constant(whole));
  }
  graph.sort();
}

void fill_read_joined(const compile::Program& program, base::SharedCache& packs) {
  for (const compile::Slot& slot : program.slots) {
    if (slot.kind != compile::SlotKind::constant || slot.unread || !tensor::is_joined(slot.constant))
      continue;
    packs.get<std::byte>(ir::pack_key(slot.constant, "filled"), [&] {
      tensor::fill_joined(slot.constant);
      return slot.constant.owner();
    });
  }
}

}  // namespace trireme::lower
