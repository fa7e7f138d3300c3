// The typed graph: values and nodes in vectors, addressed by 32-bit ids, typed when a node is added.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/kernel.h"
#include "tensor/shard.h"

namespace trireme::ir {

enum class ValueId : uint32_t {};
enum class NodeId : uint32_t {};
inline constexpr ValueId kNoValue{0xffffffffu};  ///< an absent optional operand or unused result
inline constexpr NodeId kNoNode{0xffffffffu};
constexpr size_t index(ValueId id) { return static_cast<size_t>(id); }
constexpr size_t index(NodeId id) { return static_cast<size_t>(id); }

/// input: fed per run; param: weight (trainable); state: updated in place by ops; constant: never changes.
enum class ValueKind : uint8_t { input, param, state, constant, computed };
std::string_view to_string(ValueKind kind);

struct Value {
  tensor::TensorType type;
  ValueKind kind = ValueKind::computed;
  NodeId producer = kNoNode;
  uint32_t producer_index = 0;  ///< which result of the producer
  std::string name;             ///< unique among inputs, params, states and outputs; may be empty elsewhere
  tensor::Tensor data;          ///< content of params and constants
  tensor::Shard shard;          ///< in a rank's graph: how the value is spread over Graph::mesh
};

struct Node {
  const OpDef* op = nullptr;
  Attrs attrs;
  std::vector<ValueId> in;   ///< kNoValue for an absent optional operand
  std::vector<ValueId> out;  ///< kNoValue for a result nobody asked for
  std::string from;          ///< source layer, for messages
  std::string_view op_name() const { return op->schema.name; }
  /// Operand i; kNoValue where it is absent.
  ValueId operand(size_t i) const { return i < in.size() ? in[i] : kNoValue; }
  bool has_operand(size_t i) const { return operand(i) != kNoValue; }
};

/// Vectors and ids: cheap to copy, print, diff. Nodes stand in a valid execution order after sort().
/// Dead nodes (erased) have op == nullptr until sort() drops them; ids are stable between sorts.
class Graph {
 public:
  std::string name;
  /// The mesh of ranks of which this graph is one rank's part; types are then local. One rank: not sharded.
  tensor::MeshShape mesh;

  ValueId add_input(std::string name, tensor::TensorType type);
  ValueId add_param(std::string name, tensor::Tensor data);
  ValueId add_constant(tensor::Tensor data, std::string name = {});
  /// A value that lives across runs and that update nodes write in place; its content is not part of the
  /// graph. Names of states are unique.
  ValueId add_state(std::string name, tensor::TensorType type);
  /// Makes a param a state: its content leaves the graph (take it before), its name stays.
  void make_state(ValueId param);
  void add_output(ValueId value, std::string name);

  /// Appends a node and its results, typed by the op's rule. `out_count` results; see add_node for partial
  /// ones.
  std::vector<ValueId> add(const OpDef& op, std::vector<ValueId> in, Attrs attrs = {}, size_t out_count = 1,
                           std::string from = {});
  /// add() for the common case of one result.
  ValueId add1(const OpDef& op, std::vector<ValueId> in, Attrs attrs = {}, std::string from = {});

  const Value& value(ValueId id) const { return values_[index(id)]; }
  Value& value(ValueId id) { return values_[index(id)]; }
  const Node& node(NodeId id) const { return nodes_[index(id)]; }
  Node& node(NodeId id) { return nodes_[index(id)]; }
  const tensor::TensorType& type(ValueId id) const { return value(id).type; }
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const Value> values() const { return values_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }
  const std::vector<std::string>& output_names() const { return output_names_; }

  /// The node that computes `id`, or null for inputs and data.
  const Node* producer(ValueId id) const;
  /// The value whose bytes `id` shows: `id` itself, or what a chain of views (reshapes) looks at.
  ValueId viewed(ValueId id) const;
  /// The constant (or param) content of `id`, or null.
  const tensor::Tensor* known(ValueId id) const;
  /// Live nodes that read each value, by value index; one entry per use. Built afresh: O(nodes).
  std::vector<std::vector<NodeId>> uses() const;

  /// Makes every reader of `from` (graph outputs too) read `to`. Cost: the readers of `from`.
  void replace_uses(ValueId from, ValueId to);
  /// Makes one node read `value` as its operand `i`.
  void set_operand(NodeId id, size_t i, ValueId value);
  void erase(NodeId id);
  /// Changes operand lists of outputs, e.g. to return more values.
  void set_outputs(std::vector<ValueId> values, std::vector<std::string> names);
  /// Drops erased and unread nodes, orders the rest topologically (stable), renumbers all ids.
  /// Throws invalid_argument naming a node if there is a cycle. Inputs stay even if unread.
  void sort();
  /// A view of a node for infer, cost and kernels. Valid while the graph is not changed.
  NodeView view(const Node& node) const;
  /// Types the results of one node anew (after its operands' types or values changed).
  void infer_node(NodeId id);
  /// infer_node for every node in order.
  void infer_all();

 private:
  ValueId add_value(Value value);
  void index_readers();
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<ValueId> inputs_, outputs_;
  std::vector<std::string> output_names_;
  /// Nodes that read each value or once did, by value index; built by the first replace_uses after a sort(),
  /// so that a pass with as many rewrites as nodes stays linear. Operand lists change only through this
  /// class.
  std::vector<std::vector<uint32_t>> readers_;
};

/// Checks every invariant: ids in range, order, types equal to the op's inference, names unique, outputs
/// computed. Throws internal naming the first broken node.
void verify(const Graph& graph);

/// The text form: one line per value or node. parse(print(g)) prints the same text; large constants print as
/// a hash.
std::string print(const Graph& graph);
/// Reads the text form. Constants are given in full (`f32[2]{1, 2}`) or as `f32[2]#zeros`. Throws
/// invalid_argument with line number.
Graph parse(std::string_view text, const OpTable& ops);

}  // namespace trireme::ir
