// The state of one ONNX import: scopes of names, local functions, subgraphs.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "model/model.h"
#include "model/onnx/emitter.h"
#include "model/onnx/content_reader.h"
#include "model/onnx/importer_strings.h"

namespace trireme::model::onnx {

using Opsets = std::map<std::string, int64_t, std::less<>>;  // domain ("" = ai.onnx) -> version

/// Names visible to the nodes being imported, and where those nodes go.
struct Scope {
  ir::Graph& graph;
  const Opsets& opsets;
  const CallAttrs* call_attrs = nullptr;  ///< inside a function body
  bool keeps_names = true;                ///< computed values take their ONNX names
  std::string prefix = {};                ///< names the call chain of a function body, for messages
  std::unordered_map<std::string_view, ir::ValueId> values = {};

  /// Names a value. Throws invalid_argument if the name is taken.
  void bind(std::string_view name, ir::ValueId value);
  /// kNoValue for an empty name. Throws invalid_argument if nothing has that name yet.
  ir::ValueId lookup(std::string_view name) const;
};

/// Turns a parsed model into a graph. Use once.
class Importer {
 public:
  /// `fed`: inputs with defaults (see FileInput) that are to be inputs of the graph and not constants.
  Importer(const ModelProto& proto, TensorSource source, bool takes_strings,
           const std::vector<std::string>& fed);
  ir::Graph run();
  /// The files of external data that weights look into.
  const auto& external_files() const { return contents_.external_files(); }
  int64_t default_opset() const;
  const std::vector<StringPort>& string_inputs() const { return strings_.inputs(); }
  const std::vector<StringPort>& string_outputs() const { return strings_.outputs(); }
  /// By name, the shapes that the file declares of outputs whose rank the operators do not tell.
  const auto& declared_outputs() const { return declared_outputs_; }

 private:
  struct BodyInput {
    const ValueInfoProto* info;
    tensor::TensorType type;
  };

  ir::Graph import_main();
  void add_inputs(const GraphProto& graph, Scope& scope);
  void add_initializers(const GraphProto& graph, Scope& scope);
  void add_outputs(const GraphProto& graph, Scope& scope);
  void add_nodes(const std::vector<NodeProto>& nodes, Scope& scope);
  void add_node(const NodeProto& node, Scope& scope);
  bool add_constant_node(const NodeProto& node, Scope& scope);
  std::vector<ir::ValueId> add_operator(const NodeProto& node, PendingNode pending, Scope& scope);
  void inline_call(const FunctionProto& function, const NodeProto& node, Scope& scope);
  /// ONNX gives every node without a seed numbers of its own: sets the attribute of a node that draws.
  void give_seed(const ir::OpSchema& schema, ir::Attrs& attrs);

  /// Reads If, Loop and Scan: bodies become graph attributes, captured outer values extra operands.
  void add_bodies(const NodeProto& node, PendingNode& pending, Scope& scope);
  std::vector<BodyInput> body_inputs(const GraphProto& body, const PendingNode& pending,
                                     const ir::Graph& outer);
  ir::GraphPtr import_body(const GraphProto& body, const std::vector<BodyInput>& inputs,
                           const std::vector<std::string_view>& captures, const Scope& outer);

  ir::ValueId inline_graph(const GraphProto& body, ir::ValueId argument, Scope& outer);
  std::vector<ir::ValueId> add_flex_attention(const NodeProto& node, const PendingNode& n, Scope& scope);

  const FunctionProto* find_function(const NodeProto& node) const;
  Opsets read_opsets(const std::vector<OpsetId>& imports) const;

  const ModelProto& proto_;
  std::unordered_set<std::string_view> fed_;
  ContentReader contents_;
  StringValues strings_;
  std::vector<std::pair<std::string, tensor::Shape>> declared_outputs_;
  Opsets opsets_;
  std::map<std::string, const FunctionProto*, std::less<>> functions_;
  int depth_ = 0;  // function calls and bodies being imported
  const int64_t most_nodes_;
  int64_t given_seeds_ = 0;
  int64_t node_count_ = 0;  // nodes made so far, over all inlined calls, and what copies of them cost
};

/// Names that a graph reads but does not define, in the order of first use: what it captures from outside.
std::vector<std::string_view> free_names(const GraphProto& graph);

/// Nodes so that each comes after those whose results it reads, its bodies included; in the file's order
/// where that allows it. Nodes of a cycle come in some order.
std::vector<const NodeProto*> in_order(const std::vector<NodeProto>& nodes);

/// The type of a declared input. Throws unsupported for sequences, maps, optionals and strings, by that name.
tensor::TensorType type_from(const ValueInfoProto& info);

}  // namespace trireme::model::onnx
