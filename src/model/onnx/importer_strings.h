// Strings of an ONNX model: which values of its graph stand for them.
#pragma once

#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "model/model.h"
#include "model/onnx/emitter.h"
#include "model/onnx/proto.h"

namespace trireme::model::onnx {

/// The graph has numbers in the place of strings (see StringPort), in the main graph only; what these rules
/// do not know is refused as unsupported.
class StringValues {
 public:
  /// `graph` is the file's and outlives it. `takes_strings` false: there are none.
  StringValues(const GraphProto& graph, bool takes_strings) : proto_(graph), takes_strings_(takes_strings) {}
  /// The main graph is going to be imported into this one.
  void begin(const ir::Graph& main) { main_ = &main; }

  bool has(ir::ValueId id, const ir::Graph& graph) const;
  bool is_input(const ValueInfoProto& info) const;
  /// Notes how the input is used and gives the input of numbers that stands in its place; bound() follows.
  ValueInfoProto add_input(const ValueInfoProto& info);
  void bound(ir::ValueId input) { forms_[ir::index(input)] = inputs_.back().form; }

  /// A Cast from or to strings vanishes: the caller of the model does it. Its result; nothing for other
  /// nodes.
  std::optional<ir::ValueId> add_cast(const NodeProto& node, const PendingNode& pending, ir::Graph& graph);
  /// Whether the node's results are strings too; moved() notes them. Throws unsupported if it may not see
  /// strings.
  bool moves(const PendingNode& pending, const ir::Graph& graph) const;
  void moved(ir::ValueId result) { forms_[ir::index(result)] = StringPort::Form::handle; }

  void note_output(const ValueInfoProto& info, ir::ValueId id);
  const std::vector<StringPort>& inputs() const { return inputs_; }
  const std::vector<StringPort>& outputs() const { return outputs_; }

 private:
  const GraphProto& proto_;
  const bool takes_strings_;
  const ir::Graph* main_ = nullptr;
  std::unordered_map<size_t, StringPort::Form> forms_;  // of the values that stand for strings
  std::vector<StringPort> inputs_, outputs_;
};

}  // namespace trireme::model::onnx
