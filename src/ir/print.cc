// The text form of a graph: one line per input, param, constant and node.
#include <sstream>

#include "ir/graph.h"

namespace trireme::ir {
namespace {

constexpr int64_t kFullConstant = 16;  // constants up to this many elements print in full

std::string id_text(ValueId id) { return id == kNoValue ? "_" : "%" + std::to_string(index(id)); }

std::string content(const tensor::Tensor& t) {
  const bool small = t.elements() <= kFullConstant && tensor::bits_of(t.dtype()) % 8 == 0 &&
                     t.dtype() <= tensor::DType::boolean;
  if (!small) return base::concat("#", std::hex, tensor::content_hash(t));
  std::ostringstream out;
  out.precision(17);
  out << "{";
  const bool is_float = tensor::is_float(t.dtype());
  const std::vector<double> reals = is_float ? t.to_doubles() : std::vector<double>{};
  const std::vector<int64_t> whole = is_float ? std::vector<int64_t>{} : t.to_ints();
  for (int64_t i = 0; i < t.elements(); ++i) {
    if (i > 0) out << ", ";
    if (is_float) {
      out << reals[static_cast<size_t>(i)];
    } else {
      out << whole[static_cast<size_t>(i)];
    }
  }
  return out.str() + "}";
}

void print_source(std::ostream& out, const Graph& g, size_t i) {
  const Value& v = g.values()[i];
  out << "  %" << i << " = " << to_string(v.kind);
  if (!v.name.empty()) out << " \"" << v.name << "\"";
  out << " : " << v.type.to_string();
  if (v.data.defined()) out << content(v.data);
  out << "\n";
}

template <class F>
std::string joined(const std::vector<ValueId>& ids, F&& text) {
  std::string out;
  for (ValueId id : ids) out += (out.empty() ? "" : ", ") + text(id);
  return out;
}

void print_node(std::ostream& out, const Graph& g, const Node& node) {
  out << "  " << joined(node.out, id_text) << " = " << node.op_name() << "(" << joined(node.in, id_text) << ")";
  if (!node.attrs.items().empty()) out << " {" << node.attrs.to_string() << "}";
  out << " : " << joined(node.out, [&](ValueId id) {
    return id == kNoValue ? std::string("_") : g.type(id).to_string();
  });
  if (!node.from.empty()) out << "  # " << node.from;
  out << "\n";
}

}  // namespace

std::string print(const Graph& g) {
  std::ostringstream out;
  out << "graph \"" << g.name << "\"\n";
  for (size_t i = 0; i < g.values().size(); ++i) {
    if (g.values()[i].kind != ValueKind::computed) print_source(out, g, i);
  }
  for (const Node& node : g.nodes()) {
    if (node.op != nullptr) print_node(out, g, node);
  }
  out << "  return";
  for (size_t i = 0; i < g.outputs().size(); ++i) {
    out << (i ? ", " : " ") << id_text(g.outputs()[i]) << " \"" << g.output_names()[i] << "\"";
  }
  out << "\n";
  return out.str();
}

}  // namespace trireme::ir
