// Checks every invariant of a graph; used after each pass in tests and under `inspect`.
#include <set>

#include "ir/graph.h"
#include "ir/updates.h"

namespace trireme::ir {
namespace {

void check_values(const Graph& g) {
  std::set<std::string> names;
  for (size_t i = 0; i < g.values().size(); ++i) {
    const Value& v = g.values()[i];
    const bool has_data = v.kind == ValueKind::param || v.kind == ValueKind::constant;
    base::check(has_data == v.data.defined(), "value %", i, " of kind ", to_string(v.kind),
                " and its data disagree");
    if (v.data.defined()) {
      base::check(v.data.type() == tensor::TensorType{v.type.dtype, v.type.shape}, "value %", i, " is typed ",
                  v.type.to_string(), " but holds ", v.data.type().to_string());
    }
    if (v.kind == ValueKind::input || v.kind == ValueKind::state)
      base::check(names.insert(v.name).second, "two inputs or states are called '", v.name, "'");
  }
}

/// Known extents must agree; an unknown one agrees with anything, since passes may know more than a fresh
/// inference.
bool agree(const tensor::TensorType& a, const tensor::TensorType& b) {
  if (a.dtype != b.dtype) return false;
  if (!a.shape.has_rank() || !b.shape.has_rank()) return true;
  if (a.shape.rank() != b.shape.rank()) return false;
  for (size_t i = 0; i < a.shape.rank(); ++i) {
    const bool both = a.shape[i].is_static() && b.shape[i].is_static();
    if (both && a.shape[i].value() != b.shape[i].value()) return false;
  }
  return true;
}

/// Updates write states, each state once, and after every reader of the old content (`ready` is set by then).
/// The update of a computed value makes a new value.
void check_updates(const Graph& g, const Node& node, std::vector<char>& is_updated) {
  for (ValueId id : node.in) {
    if (id == kNoValue) continue;
    const ValueId source = g.viewed(id);
    base::check(!is_updated[index(source)], "node ", node.op_name(), " reads state '", g.value(source).name,
                "' after it was updated");
  }
  for (const StateUpdate& u : updates_of(node)) {
    const ValueId id = node.in[u.operand];
    if (g.value(id).kind == ValueKind::computed && g.viewed(id) == id) continue;
    base::check(g.value(id).kind == ValueKind::state, "node ", node.op_name(), " updates operand ", u.operand,
                ", which is no state");
    is_updated[index(id)] = 1;
  }
}

void check_node(const Graph& g, size_t n, const std::vector<char>& ready) {
  const Node& node = g.nodes()[n];
  for (ValueId id : node.in) {
    if (id == kNoValue) continue;
    base::check(index(id) < g.values().size(), "node ", n, " reads a value that does not exist");
    base::check(ready[index(id)], "node ", n, " (", node.op_name(), ") reads %", index(id),
                " before it is computed");
  }
  NodeView v = g.view(node);
  v.out.clear();
  const std::vector<tensor::TensorType> types = infer_types(node.op->schema, v);
  for (size_t i = 0; i < node.out.size(); ++i) {
    const ValueId id = node.out[i];
    if (id == kNoValue) continue;
    base::check(g.value(id).producer == NodeId(static_cast<uint32_t>(n)), "result %", index(id), " of node ",
                n, " names another producer");
    base::check(agree(g.type(id), types[i]), "node ", n, " (", node.op_name(), ") infers ",
                types[i].to_string(), " for %", index(id), ", which is typed ", g.type(id).to_string());
  }
}

}  // namespace

void verify(const Graph& g) {
  check_values(g);
  std::vector<char> ready(g.values().size());
  for (size_t i = 0; i < ready.size(); ++i) ready[i] = g.values()[i].kind != ValueKind::computed;
  std::vector<char> is_updated(g.values().size());
  for (size_t n = 0; n < g.nodes().size(); ++n) {
    base::check(g.nodes()[n].op != nullptr, "node ", n, " is erased; sort() first");
    try {
      check_node(g, n, ready);
      check_updates(g, g.nodes()[n], is_updated);
    } catch (const base::Error& e) {
      throw e.with(base::concat("graph '", g.name, "'"));
    }
    for (ValueId id : g.nodes()[n].out) {
      if (id != kNoValue) ready[index(id)] = 1;
    }
  }
  base::check(g.outputs().size() == g.output_names().size(), "outputs and output names differ in number");
  for (ValueId id : g.outputs()) {
    base::check(index(id) < ready.size() && ready[index(id)], "an output is not computed");
  }
}

}  // namespace trireme::ir
