// Summarises how products read a file's matrices, and how many bytes of them one token reads.
#include "model/weight_summary.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "ops/experts/experts.h"
#include "ops/stored_weights.h"
#include "ops/weight_only/weight_only.h"

namespace trireme::model {
namespace {

using ir::Node;
using ir::ValueId;

/// A matrix in the form in which products read it.
struct Matrix {
  std::string name, text;  ///< text: from which form to which
  int64_t rows = 0, width = 0, bytes = 0;
};

int64_t bytes_of(const ir::Graph& graph, const Node& node) {
  int64_t bytes = 0;
  for (const ValueId id : node.in) bytes += id == ir::kNoValue ? 0 : tensor::bytes_of(graph.type(id));
  return bytes;
}

/// Describes the form in which products read such weights.
std::string read_as(const ops::WeightForm& form, bool has_order) {
  if (!form.has_scales()) return "as stored";
  std::string text =
      form.type == tensor::DType::u8 ? base::concat(form.bits, "-bit codes") : "8-bit floats as stored";
  text += base::concat(", scales of groups of ", form.group);
  if (form.asymmetric) text += ", zero points";
  if (has_order) text += ", channels of rows moved to the columns' order";
  return text;
}

Matrix matrix_of(const ir::Graph& graph, const Node& node) {
  const tensor::Shape& shape = graph.type(node.out[0]).shape;
  Matrix m{.name = graph.value(node.in[0]).name,
           .text = {},
           .rows = shape[0].value(),
           .width = shape[1].value(),
           .bytes = bytes_of(graph, node)};
  if (node.op_name() == "dequantize_blocks") {
    m.text = node.attrs.get_string("format", "") + " -> blocks as stored";
    return m;
  }
  const auto present = [&](size_t i) { return i < node.in.size() && node.in[i] != ir::kNoValue; };
  const ops::WeightForm form =
      ops::weight_form(node.attrs, graph.type(node.in[0]).dtype, present(ops::kDqZero));
  m.text = node.attrs.get_string("from", "") + " -> ";
  if (const ir::Refusal no = ops::refuse_weight_form(form, m.width)) {
    m.text += "f32: " + *no;
    m.bytes = m.rows * m.width * 4;
  } else {
    m.text += read_as(form, present(ops::kDqOrder));
  }
  return m;
}

/// Replaces the first number: "model.layers.*.mlp.up_proj.weight".
std::string without_number(const std::string& name) {
  const size_t at = name.find_first_of("0123456789");
  if (at == std::string::npos || (at > 0 && name[at - 1] != '.')) return name;
  const size_t end = std::min(name.find_first_not_of("0123456789", at), name.size());
  return name.substr(0, at) + "*" + name.substr(end);
}

/// True if the value is a lookup table that nothing else reads.
bool is_table(const ir::Graph& graph, const std::vector<std::vector<ir::NodeId>>& uses, ValueId id) {
  const std::vector<ir::NodeId>& readers = uses[ir::index(id)];
  return !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](ir::NodeId r) {
    return graph.node(r).op_name() == "gather" && graph.node(r).in[0] == id;
  });
}

/// The part of a weight that one token reads: for experts, only those chosen for it.
double share_of_token(const ir::Graph& graph, const std::vector<std::vector<ir::NodeId>>& uses, ValueId id) {
  if (uses[ir::index(id)].empty()) return 1;
  double share = 0;
  for (const ir::NodeId r : uses[ir::index(id)]) {
    const Node& node = graph.node(r);
    if (node.op_name() == "reshape" && node.in[0] == id) {
      share = std::max(share, share_of_token(graph, uses, node.out[0]));
    } else if (ops::expert_places(node.op->schema) != nullptr && node.in[ops::kExX] != id) {
      const tensor::Dim& chosen = graph.type(node.in[ops::kExChosen]).shape.dims().back();
      const tensor::Dim& experts = graph.type(node.in[ops::kExWeights]).shape[0];
      if (!chosen.is_static() || !experts.is_static()) return 1;
      share = std::max(share, static_cast<double>(chosen.value()) / static_cast<double>(experts.value()));
    } else {
      return 1;
    }
  }
  return share;
}

std::string megabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

}  // namespace

std::string describe_stored_weights(const ir::Graph& graph) {
  const std::vector<std::vector<ir::NodeId>> uses = graph.uses();
  std::vector<std::pair<std::string, int64_t>> lines;  // in the graph's order, with counts
  std::map<std::string, size_t> at;
  int64_t token_bytes = 0;
  bool has_experts = false;
  std::vector<bool> is_counted(graph.values().size());
  bool any = false;
  const auto count = [&](ValueId id, const Matrix& m) {
    const double share = share_of_token(graph, uses, id);
    has_experts |= share < 1;
    token_bytes += is_table(graph, uses, id) ? m.bytes / std::max<int64_t>(1, m.rows)
                                             : static_cast<int64_t>(static_cast<double>(m.bytes) * share);
    const std::string line = base::concat(without_number(m.name), " [", m.rows, ", ", m.width, "] ", m.text,
                                          ", ", megabytes(m.bytes));
    const auto [found, is_new] = at.try_emplace(line, lines.size());
    if (is_new) lines.emplace_back(line, 0);
    ++lines[found->second].second;
  };
  for (const Node& node : graph.nodes()) {
    if (node.op == nullptr) continue;
    if (ops::opens_stored_weight(node.op->schema)) {
      any = true;
      for (const ValueId id : node.in) {
        if (id != ir::kNoValue) is_counted[ir::index(id)] = true;
      }
      count(node.out[0], matrix_of(graph, node));
    }
  }
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const ir::Value& v = graph.values()[i];
    if (v.kind != ir::ValueKind::param || is_counted[i] || v.type.shape.rank() < 2) continue;
    const int64_t rows = v.type.shape[0].value();
    count(ValueId(static_cast<uint32_t>(i)),
          {.name = v.name,
           .text = std::string(tensor::name_of(v.type.dtype)),
           .rows = rows,
           .width = v.type.shape.elements().value_or(0) / std::max<int64_t>(1, rows),
           .bytes = tensor::bytes_of(v.type)});
  }
  if (!any && !has_experts) return {};
  std::string text;
  for (const auto& [line, times] : lines)
    text += "# " + line + (times == 1 ? "" : base::concat(" each, ", times, " of them")) + "\n";
  return text + "# a token reads " + megabytes(token_bytes) + " of weights\n";
}

}  // namespace trireme::model
