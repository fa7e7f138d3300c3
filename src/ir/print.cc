// The text form of a graph: one line per input, param, constant and node.
#include <sstream>

#include "ir/graph.h"
#include "ir/text.h"

namespace trireme::ir {
namespace {

std::string id_text(ValueId id) { return id == kNoValue ? "_" : "%" + std::to_string(index(id)); }

void print_source(std::ostream& out, const Graph& g, size_t i) {
  const Value& v = g.values()[i];
  out << "  %" << i << " = " << to_string(v.kind);
  if (!v.name.empty()) out << " " << quoted_text(v.name);
  out << " : " << (v.data.defined() ? tensor_text(v.data) : v.type.to_string()) << v.shard.to_string(g.mesh)
      << "\n";
}

template <class F>
std::string joined(const std::vector<ValueId>& ids, F&& text) {
  std::string out;
  for (ValueId id : ids) out += (out.empty() ? "" : ", ") + text(id);
  return out;
}

void print_node(std::ostream& out, const Graph& g, const Node& node) {
  out << "  " << joined(node.out, id_text) << " = " << node.op_name() << "(" << joined(node.in, id_text)
      << ")";
  if (!node.attrs.items().empty()) out << " {" << node.attrs.to_string() << "}";
  out << " : " << joined(node.out, [&](ValueId id) {
    return id == kNoValue ? std::string("_") : g.type(id).to_string() + g.value(id).shard.to_string(g.mesh);
  });
  if (!node.from.empty()) out << "  # " << node.from;
  out << "\n";
}

}  // namespace

std::string print(const Graph& g) {
  std::ostringstream out;
  out << "graph " << quoted_text(g.name) << "\n";
  if (!g.mesh.axes().empty()) out << "  mesh";
  for (const tensor::MeshAxis& a : g.mesh.axes()) out << " " << a.name << "=" << a.extent;
  if (!g.mesh.axes().empty()) out << "\n";
  for (size_t i = 0; i < g.values().size(); ++i) {
    if (g.values()[i].kind != ValueKind::computed) print_source(out, g, i);
  }
  for (const Node& node : g.nodes()) {
    if (node.op != nullptr) print_node(out, g, node);
  }
  out << "  return";
  for (size_t i = 0; i < g.outputs().size(); ++i) {
    out << (i ? ", " : " ") << id_text(g.outputs()[i]) << " " << quoted_text(g.output_names()[i]);
  }
  out << "\n";
  return out.str();
}

}  // namespace trireme::ir
