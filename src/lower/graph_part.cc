// Copies nodes of a graph; values from outside become constants or inputs.
#include "lower/graph_part.h"

namespace trireme::lower {

using ir::ValueId;

GraphPart::GraphPart(const ir::Graph& source) : source_(source) { part_.name = source.name; }

void GraphPart::add_input(ValueId id) { add_input(id, source_.type(id)); }

ValueId GraphPart::add_input(ValueId id, tensor::TensorType type) {
  const std::string& given = source_.value(id).name;
  const std::string name = given.empty() ? "v" + std::to_string(ir::index(id)) : given;
  inputs_.push_back(id);
  return copied_[id] = part_.add_input(name, std::move(type));
}

void GraphPart::add_node(const ir::Node& node) {
  std::vector<ValueId> in;
  for (ValueId id : node.in) in.push_back(import(id));
  const std::vector<ValueId> out = part_.add(*node.op, in, node.attrs, node.out.size(), node.from);
  for (size_t i = 0; i < out.size(); ++i) {
    if (node.out[i] == ir::kNoValue) continue;
    copied_[node.out[i]] = out[i];
    part_.value(out[i]).name = source_.value(node.out[i]).name;
  }
}

void GraphPart::add_output(ValueId id, const std::string& name) { part_.add_output(import(id), name); }

ValueId GraphPart::import(ValueId id) {
  if (id == ir::kNoValue) return id;
  if (const auto at = copied_.find(id); at != copied_.end()) return at->second;
  const ir::Value& v = source_.value(id);
  if (v.data.defined()) return copied_[id] = part_.add_constant(v.data, v.name);
  add_input(id);
  return copied_[id];
}

}  // namespace trireme::lower
