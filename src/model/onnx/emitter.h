// A node on its way from ONNX into a graph, and the small vocabulary that rewrites of old forms are written
// in.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace trireme::model::onnx {

/// An ONNX node whose names are resolved and whose attributes are read, before it becomes nodes of the graph.
struct PendingNode {
  std::string op_type;
  int64_t opset = 0;  ///< version of the default domain that the node was written for
  ir::Attrs attrs;
  std::vector<ir::ValueId> in;
  size_t out_count = 1;       ///< results up to the last one that has a name
  size_t listed_outputs = 1;  ///< results in the file, with the nameless ones at the end
  std::string from;

  bool has_input(size_t i) const { return i < in.size() && in[i] != ir::kNoValue; }
  ir::ValueId input(size_t i) const { return i < in.size() ? in[i] : ir::kNoValue; }
  /// Sets operand i; the operands before it that do not exist become absent.
  void set_input(size_t i, ir::ValueId value);
};

/// Adds nodes to a graph by ONNX operator name, in their newest form.
class Emitter {
 public:
  Emitter(ir::Graph& graph, std::string from) : graph_(graph), from_(std::move(from)) {}

  ir::Graph& graph() { return graph_; }
  /// Throws invalid_argument for the id of an operand that a node leaves out.
  const tensor::TensorType& type(ir::ValueId id) const {
    base::require(id != ir::kNoValue, "an operand that the node needs is absent");
    return graph_.type(id);
  }
  /// Rank of a value. Throws unsupported if it is not known.
  size_t rank(ir::ValueId id) const { return type(id).shape.rank(); }

  ir::ValueId ints(const std::vector<int64_t>& values);  ///< i64 [n]
  ir::ValueId int_scalar(int64_t value);                 ///< i64 []
  /// A scalar of a floating or integer element type.
  ir::ValueId scalar_of(tensor::DType dtype, double value);
  ir::ValueId constant(tensor::Tensor t) { return graph_.add_constant(std::move(t)); }

  ir::ValueId emit(std::string_view onnx_op, std::vector<ir::ValueId> in, ir::Attrs attrs = {});
  std::vector<ir::ValueId> emit_many(std::string_view onnx_op, std::vector<ir::ValueId> in, ir::Attrs attrs,
                                     size_t out_count);

 private:
  ir::Graph& graph_;
  std::string from_;
};

/// The op whose schema names this operator of the default ONNX domain, or null.
const ir::OpDef* find_onnx_op(std::string_view onnx_op);

/// As find_onnx_op. Throws unsupported naming the nearest known operator.
const ir::OpDef& need_onnx_op(std::string_view onnx_op, std::string_view domain = {});

/// Rewrites a node of an older opset to the newest form, in place; or emits it whole and returns its results.
std::optional<std::vector<ir::ValueId>> upgrade(Emitter& emitter, PendingNode& node);

/// Spells a node out in other operators if it has no op of its own.
std::optional<std::vector<ir::ValueId>> decompose(Emitter& emitter, PendingNode& node);

}  // namespace trireme::model::onnx
