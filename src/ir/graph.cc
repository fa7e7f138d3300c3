// The typed graph: adding, rewiring, sorting.
#include "ir/graph.h"

#include <algorithm>
#include <unordered_map>

#include "ir/updates.h"

namespace trireme::ir {

std::string_view to_string(ValueKind kind) {
  switch (kind) {
    case ValueKind::input: return "input";
    case ValueKind::param: return "param";
    case ValueKind::state: return "state";
    case ValueKind::constant: return "const";
    case ValueKind::computed: return "computed";
  }
  return "computed";
}

ValueId Graph::add_value(Value value) {
  values_.push_back(std::move(value));
  if (!readers_.empty()) readers_.emplace_back();
  return ValueId(static_cast<uint32_t>(values_.size() - 1));
}

ValueId Graph::add_input(std::string input_name, tensor::TensorType type) {
  Value v;
  v.type = std::move(type);
  v.kind = ValueKind::input;
  v.name = std::move(input_name);
  inputs_.push_back(add_value(std::move(v)));
  return inputs_.back();
}

ValueId Graph::add_param(std::string param_name, tensor::Tensor data) {
  const ValueId id = add_constant(std::move(data), std::move(param_name));
  value(id).kind = ValueKind::param;
  return id;
}

ValueId Graph::add_constant(tensor::Tensor data, std::string constant_name) {
  base::check(data.defined(), "constant '", constant_name, "' has no data");
  Value v;
  v.type = data.type();
  v.kind = ValueKind::constant;
  v.name = std::move(constant_name);
  v.data = std::move(data);
  return add_value(std::move(v));
}

ValueId Graph::add_state(std::string state_name, tensor::TensorType type) {
  Value v;
  v.type = std::move(type);
  v.kind = ValueKind::state;
  v.name = std::move(state_name);
  return add_value(std::move(v));
}

void Graph::make_state(ValueId param) {
  Value& v = value(param);
  base::check(v.kind == ValueKind::param, "'", v.name, "' is of kind ", to_string(v.kind), ", not a param");
  v.kind = ValueKind::state;
  v.data = {};
}

void Graph::add_output(ValueId id, std::string output_name) {
  outputs_.push_back(id);
  output_names_.push_back(std::move(output_name));
}

NodeView Graph::view(const Node& node) const {
  NodeView v{
      .attrs = node.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}, .out_count = node.out.size()};
  v.name = node.from.empty() ? node.op_name() : std::string_view(node.from);
  for (ValueId id : node.in) {
    const bool present = id != kNoValue;
    v.is_present.push_back(present);
    v.in.push_back(present ? type(id) : tensor::TensorType{});
    v.known.push_back(present ? known(id) : nullptr);
  }
  for (ValueId id : node.out) v.out.push_back(id == kNoValue ? tensor::TensorType{} : type(id));
  return v;
}

std::vector<ValueId> Graph::add(const OpDef& op, std::vector<ValueId> in, Attrs attrs, size_t out_count,
                                std::string from) {
  for (ValueId id : in) base::check(id == kNoValue || index(id) < values_.size(), "operand id out of range");
  Node node{&op, std::move(attrs), std::move(in), {}, std::move(from)};
  node.out.assign(out_count, kNoValue);
  NodeView v = view(node);
  v.out.clear();
  std::vector<tensor::TensorType> types;
  try {
    types = infer_types(op.schema, v);
  } catch (const base::Error& e) {
    throw e.with(base::concat("node '", node.from, "' (", op.schema.name, ")"));
  }
  const auto id = NodeId(static_cast<uint32_t>(nodes_.size()));
  for (size_t i = 0; i < out_count; ++i) {
    Value result;
    result.type = std::move(types[i]);
    result.producer = id;
    result.producer_index = static_cast<uint32_t>(i);
    node.out[i] = add_value(std::move(result));
  }
  if (!readers_.empty()) {
    for (ValueId operand : node.in) {
      if (operand != kNoValue) readers_[index(operand)].push_back(static_cast<uint32_t>(index(id)));
    }
  }
  nodes_.push_back(std::move(node));
  return nodes_.back().out;
}

ValueId Graph::add1(const OpDef& op, std::vector<ValueId> in, Attrs attrs, std::string from) {
  return add(op, std::move(in), std::move(attrs), 1, std::move(from))[0];
}

const Node* Graph::producer(ValueId id) const {
  if (id == kNoValue || value(id).producer == kNoNode) return nullptr;
  const Node& n = node(value(id).producer);
  return n.op == nullptr ? nullptr : &n;
}

ValueId Graph::viewed(ValueId id) const {
  for (const Node* p = producer(id); p != nullptr && p->op->schema.is_view; p = producer(id)) id = p->in[0];
  return id;
}

const tensor::Tensor* Graph::known(ValueId id) const {
  if (id == kNoValue || !value(id).data.defined()) return nullptr;
  return &value(id).data;
}

std::vector<std::vector<NodeId>> Graph::uses() const {
  std::vector<std::vector<NodeId>> readers(values_.size());
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].op == nullptr) continue;
    for (ValueId id : nodes_[n].in) {
      if (id != kNoValue) readers[index(id)].push_back(NodeId(static_cast<uint32_t>(n)));
    }
  }
  return readers;
}

void Graph::index_readers() {
  readers_.assign(values_.size(), {});
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].op == nullptr) continue;
    for (ValueId id : nodes_[n].in) {
      if (id != kNoValue) readers_[index(id)].push_back(static_cast<uint32_t>(n));
    }
  }
}

void Graph::replace_uses(ValueId from, ValueId to) {
  if (from == to) return;
  if (readers_.empty()) index_readers();
  std::vector<uint32_t> moved = std::move(readers_[index(from)]);
  readers_[index(from)].clear();
  for (uint32_t n : moved) {
    if (nodes_[n].op == nullptr) continue;
    std::replace(nodes_[n].in.begin(), nodes_[n].in.end(), from, to);
    readers_[index(to)].push_back(n);
  }
  std::replace(outputs_.begin(), outputs_.end(), from, to);
}

void Graph::set_operand(NodeId id, size_t i, ValueId operand) {
  node(id).in.at(i) = operand;
  if (!readers_.empty()) readers_[index(operand)].push_back(static_cast<uint32_t>(index(id)));
}

void Graph::erase(NodeId id) { node(id).op = nullptr; }

void Graph::set_outputs(std::vector<ValueId> ids, std::vector<std::string> names) {
  base::check(ids.size() == names.size(), "outputs and their names differ in number");
  outputs_ = std::move(ids);
  output_names_ = std::move(names);
}

namespace {

/// Depth-first order of the nodes that outputs need; without recursion, since models can be thousands of
/// nodes deep.
class Sorter {
 public:
  explicit Sorter(const Graph& g) : graph_(g), mark_(g.nodes().size(), Mark::fresh) {}

  std::vector<size_t> run() {
    // Visiting the nodes in their present order keeps the sort stable.
    const std::vector<char> wanted = needed();
    find_old_readers(wanted);
    chain_collectives(wanted);
    for (size_t n = 0; n < mark_.size(); ++n) {
      if (wanted[n]) visit(n);
    }
    return std::move(order_);
  }

 private:
  enum class Mark : uint8_t { fresh, open, done };

  std::vector<char> needed() const {
    std::vector<char> wanted(mark_.size());
    std::vector<size_t> stack;
    const auto want = [&](ValueId id) {
      const Node* p = graph_.producer(id);
      if (p == nullptr) return;
      const size_t n = index(graph_.value(id).producer);
      if (!wanted[n]) stack.push_back(n);
      wanted[n] = 1;
    };
    for (ValueId id : graph_.outputs()) want(id);
    for (size_t n = 0; n < mark_.size(); ++n) {
      const Node& node = graph_.nodes()[n];
      if (node.op != nullptr && node.op->schema.updates_state() && !wanted[n])
        wanted[n] = 1, stack.push_back(n);
    }
    while (!stack.empty()) {
      const size_t n = stack.back();
      stack.pop_back();
      for (ValueId id : graph_.nodes()[n].in) want(id);
    }
    return wanted;
  }

  /// An update overwrites its state, so whoever reads the old content comes before it.
  void find_old_readers(const std::vector<char>& wanted) {
    std::vector<std::vector<uint32_t>> readers;
    for (size_t n = 0; n < mark_.size(); ++n) {
      if (!wanted[n] || !graph_.nodes()[n].op->schema.updates_state()) continue;
      if (readers.empty()) readers = state_readers(wanted);
      const Node& node = graph_.nodes()[n];
      for (const StateUpdate& u : updates_of(node)) {
        for (uint32_t reader : readers[index(node.in[u.operand])]) {
          if (reader != n) before_[n].push_back(reader);
        }
      }
    }
  }

  /// Collectives that have a place in the common order of the ranks (attribute "order") keep it, whatever a
  /// pass did to the nodes around them on one rank.
  void chain_collectives(const std::vector<char>& wanted) {
    std::vector<std::pair<int64_t, uint32_t>> chain;
    for (size_t n = 0; n < mark_.size(); ++n) {
      const Node& node = graph_.nodes()[n];
      if (!wanted[n] || !node.op->schema.is_collective || !node.attrs.has("order")) continue;
      chain.emplace_back(node.attrs.get_int("order", 0), static_cast<uint32_t>(n));
    }
    std::sort(chain.begin(), chain.end());
    for (size_t i = 1; i < chain.size(); ++i) before_[chain[i].second].push_back(chain[i - 1].second);
  }

  std::vector<std::vector<uint32_t>> state_readers(const std::vector<char>& wanted) const {
    std::vector<std::vector<uint32_t>> readers(graph_.values().size());
    for (size_t n = 0; n < mark_.size(); ++n) {
      if (!wanted[n]) continue;
      for (ValueId id : graph_.nodes()[n].in) {
        if (id == kNoValue) continue;
        const ValueId source = graph_.viewed(id);
        if (graph_.value(source).kind == ValueKind::state)
          readers[index(source)].push_back(static_cast<uint32_t>(n));
      }
    }
    return readers;
  }

  void visit(size_t start) {
    std::vector<std::pair<size_t, size_t>> stack{{start, 0}};
    if (mark_[start] == Mark::done) return;
    mark_[start] = Mark::open;
    while (!stack.empty()) {
      auto& [n, next] = stack.back();
      const Node& node = graph_.nodes()[n];
      const auto old = before_.find(n);
      const size_t old_readers = old == before_.end() ? 0 : old->second.size();
      if (next == node.in.size() + old_readers) {
        mark_[n] = Mark::done;
        order_.push_back(n);
        stack.pop_back();
        continue;
      }
      const size_t at = next++;
      size_t p = 0;
      if (at < node.in.size()) {
        if (graph_.producer(node.in[at]) == nullptr) continue;
        p = index(graph_.value(node.in[at]).producer);
      } else {
        p = old->second[at - node.in.size()];
      }
      if (mark_[p] == Mark::open) base::fail_invalid("the graph has a cycle through node '", node.from, "'");
      if (mark_[p] == Mark::fresh) mark_[p] = Mark::open, stack.emplace_back(p, 0);
    }
  }

  const Graph& graph_;
  std::vector<Mark> mark_;
  std::vector<size_t> order_;
  /// node -> nodes that come before it for other reasons than operands: readers of a state it updates, the
  /// collective before it
  std::unordered_map<size_t, std::vector<uint32_t>> before_;
};

}  // namespace

void Graph::sort() {
  readers_.clear();
  const std::vector<size_t> order = Sorter(*this).run();
  std::vector<ValueId> renamed(values_.size(), kNoValue);
  std::vector<Value> values;
  const auto keep = [&](ValueId id) {
    if (id == kNoValue) return kNoValue;
    if (renamed[index(id)] == kNoValue) {
      renamed[index(id)] = ValueId(static_cast<uint32_t>(values.size()));
      values.push_back(std::move(values_[index(id)]));
    }
    return renamed[index(id)];
  };
  // Sources first, then results node by node: ids then follow the order of the text form.
  for (ValueId& id : inputs_) id = keep(id);
  for (size_t n : order) {
    for (ValueId id : nodes_[n].in) {
      if (id != kNoValue && producer(id) == nullptr) keep(id);
    }
  }
  for (ValueId id : outputs_) {
    if (producer(id) == nullptr) keep(id);
  }
  std::vector<Node> nodes;
  for (size_t n : order) {
    Node node = std::move(nodes_[n]);
    for (ValueId& id : node.in) id = keep(id);
    for (ValueId& id : node.out) {
      id = keep(id);
      if (id != kNoValue) values[index(id)].producer = NodeId(static_cast<uint32_t>(nodes.size()));
    }
    nodes.push_back(std::move(node));
  }
  for (ValueId& id : outputs_) id = keep(id);
  values_ = std::move(values);
  nodes_ = std::move(nodes);
}

void Graph::infer_node(NodeId id) {
  Node& n = node(id);
  NodeView v = view(n);
  v.out.clear();
  try {
    std::vector<tensor::TensorType> types = infer_types(n.op->schema, v);
    for (size_t i = 0; i < n.out.size(); ++i) {
      if (n.out[i] != kNoValue) value(n.out[i]).type = std::move(types[i]);
    }
  } catch (const base::Error& e) {
    throw e.with(base::concat("node '", n.from, "' (", n.op_name(), ")"));
  }
}

void Graph::infer_all() {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].op != nullptr) infer_node(NodeId(static_cast<uint32_t>(i)));
  }
}

}  // namespace trireme::ir
