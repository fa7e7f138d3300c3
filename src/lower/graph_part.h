// Copies chosen nodes of a graph into a graph of their own.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace trireme::lower {

/// A part of a graph while it is gathered. What its nodes read from outside becomes constants or inputs.
class GraphPart {
 public:
  /// `source` outlives the part.
  explicit GraphPart(const ir::Graph& source);

  /// Makes `id` of the source an input of the part with its present type.
  void add_input(ir::ValueId id);
  /// The same with another type: of a value that stands for `id`.
  ir::ValueId add_input(ir::ValueId id, tensor::TensorType type);
  void add_node(const ir::Node& node);
  void add_output(ir::ValueId id, const std::string& name);
  /// Makes nodes that read `id` of the source read `here`, a value of the part.
  void put(ir::ValueId id, ir::ValueId here) { copied_[id] = here; }

  bool has(ir::ValueId id) const { return copied_.count(id) != 0; }
  /// The value of the part that stands for `id`, which has() one.
  ir::ValueId at(ir::ValueId id) const { return copied_.at(id); }
  /// Of every input, in order: the value of the source.
  const std::vector<ir::ValueId>& inputs() const { return inputs_; }
  ir::Graph& graph() { return part_; }
  ir::Graph take() { return std::move(part_); }

 private:
  ir::ValueId import(ir::ValueId id);

  const ir::Graph& source_;
  ir::Graph part_;
  std::unordered_map<ir::ValueId, ir::ValueId> copied_;
  std::vector<ir::ValueId> inputs_;
};

}  // namespace trireme::lower
