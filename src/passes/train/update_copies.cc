// Adds operands and results for rounded copies of parameters to update nodes.
#include "passes/train/update_copies.h"

#include <algorithm>
#include <map>

#include "ops/optim/update_layout.h"

namespace trireme::passes {
namespace {

using ir::ValueId;

/// Maps groups of a node to the copies that they get, both by number.
using Groups = std::map<size_t, size_t>;

std::map<ir::NodeId, Groups> by_update(const ir::Graph& graph, const std::vector<ValueId>& updated,
                                       const std::vector<std::optional<UpdateCopy>>& copies) {
  std::map<ir::NodeId, Groups> found;
  for (size_t i = 0; i < updated.size(); ++i) {
    if (!copies[i]) continue;
    const ir::NodeId id = graph.value(updated[i]).producer;
    const ir::Node& node = *graph.producer(updated[i]);
    const auto at = std::find(node.out.begin(), node.out.end(), updated[i]) - node.out.begin();
    found[id][static_cast<size_t>(at) / ops::update_layout(node.op_name()).results()] = i;
  }
  return found;
}

}  // namespace

std::vector<ValueId> add_update_copies(ir::Graph& graph, std::vector<ValueId>& updated,
                                       const std::vector<std::optional<UpdateCopy>>& copies) {
  std::vector<ValueId> made(updated.size(), ir::kNoValue);
  std::map<ValueId, ValueId> now;
  for (const auto& [id, groups] : by_update(graph, updated, copies)) {
    ir::Node node = graph.node(id);
    std::vector<int64_t> numbers;
    for (const auto& [group, i] : groups) {
      const std::string type(tensor::name_of(copies[i]->type));
      base::check(node.attrs.get_string("copy_type", type) == type, "copies of one update are of one type");
      node.attrs.set("copy_type", type);
      node.in.push_back(copies[i]->state);
      numbers.push_back(static_cast<int64_t>(group));
    }
    node.attrs.set(ir::kCopiesAttr, numbers);
    const size_t results = node.out.size();
    const std::vector<ValueId> out =
        graph.add(*node.op, node.in, node.attrs, results + numbers.size(), node.from);
    for (size_t r = 0; r < results; ++r) {
      if (node.out[r] == ir::kNoValue) continue;
      graph.replace_uses(node.out[r], out[r]);
      now[node.out[r]] = out[r];
    }
    size_t next = results;
    for (const auto& [group, i] : groups) made[i] = out[next++];
    graph.erase(id);
  }
  for (ValueId& value : updated) {
    if (const auto at = now.find(value); at != now.end()) value = at->second;
  }
  return made;
}

}  // namespace trireme::passes
