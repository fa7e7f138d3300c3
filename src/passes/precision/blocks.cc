// Moves dequantize_blocks into the products and lookups that read its result.
#include "passes/precision/blocks.h"

#include <map>
#include <set>

#include "ops/blocks/blocks.h"
#include "ops/experts/experts.h"
#include "passes/precision/matrix_product.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// A matrix in block format: its bytes, and whether the value is [n, k] like them or [k, n].
struct StoredBlocks {
  ValueId bytes;
  std::string format;
  bool by_rows = true;
};

std::optional<StoredBlocks> stored(const Rewriter& rw, ValueId id) {
  if (const auto node = rw.producer(id, "dequantize_blocks")) {
    if (rw.known(node->in[0]) == nullptr) return std::nullopt;
    return StoredBlocks{node->in[0], node->attrs.get_string("format", "")};
  }
  const auto turned = rw.producer(id, "transpose");
  if (!turned || turned->attrs.get_ints("perm", {}) != std::vector<int64_t>{1, 0}) return std::nullopt;
  auto inner = rw.producer(turned->in[0], "dequantize_blocks");
  if (!inner || rw.known(inner->in[0]) == nullptr) return std::nullopt;
  return StoredBlocks{inner->in[0], inner->attrs.get_string("format", ""), false};
}

bool keep_block_product(Rewriter& rw, const Node& node) {
  const std::optional<MatrixProduct> p = matrix_product(rw, node);
  if (!p) return false;
  const std::optional<StoredBlocks> w = stored(rw, p->w);
  if (!w || w->by_rows != p->by_rows) return false;
  std::vector<ValueId> in{p->x, w->bytes};
  if (p->bias != ir::kNoValue) in.push_back(p->bias);
  const ValueId y = rw.add("block_linear", in, {{"format", w->format}, {"rows", "q8"}}, node.from);
  finish_product(rw, node, *p, y);
  return true;
}

/// Products over experts read the blocks of the chosen experts only.
bool keep_block_experts(Rewriter& rw, const Node& node) {
  if (node.op_name() != "expert_linear") return false;
  const auto apart = rw.producer(node.in[ops::kExWeights], "reshape");
  const std::optional<StoredBlocks> w = apart ? stored(rw, apart->in[0]) : std::nullopt;
  const auto dims = rw.dims(node.in[ops::kExWeights]);
  if (!w || !w->by_rows || !dims || ops::refuse_block_experts((*dims)[1])) return false;
  std::vector<ValueId> in = node.in;
  in[ops::kExWeights] = w->bytes;
  ir::Attrs attrs{{"format", w->format}, {"rows", "q8"}, {"experts", (*dims)[0]}};
  ops::copy_experts_here(node.attrs, attrs);
  rw.replace(node.out[0], rw.add("block_experts", in, attrs, node.from));
  return true;
}

bool keep_block_lookup(Rewriter& rw, const Node& node) {
  if (node.op_name() != "gather" || node.attrs.get_int("axis", 0) != 0 || node.attrs.has("first"))
    return false;
  const std::optional<StoredBlocks> w = stored(rw, node.in[0]);
  if (!w || !w->by_rows) return false;
  rw.replace(node.out[0], rw.add("block_gather", {w->bytes, node.in[1]}, {{"format", w->format}}, node.from));
  return true;
}

}  // namespace

size_t keep_blocks(ir::Graph& graph) {
  Rewriter rw(graph);
  const size_t changes = rw.for_each([&](ir::NodeId, const Node& node) {
    return keep_block_product(rw, node) || keep_block_lookup(rw, node) || keep_block_experts(rw, node);
  });
  graph.sort();
  return changes + share_packed_blocks(graph);
}

size_t join_block_products(ir::Graph& graph) {
  Rewriter rw(graph);
  std::map<std::pair<ValueId, std::string>, std::vector<Node>> by_rows;
  rw.for_each("block_linear", [&](ir::NodeId, const Node& node) {
    if (node.in.size() > ops::kBlBias && !rw.is_weight(node.in[ops::kBlBias])) return false;
    if (rw.known(node.in[ops::kBlWeights]) == nullptr) return false;
    by_rows[{node.in[ops::kBlX], node.attrs.get_string("rows", "")}].push_back(node);
    return false;
  });
  size_t changes = 0;
  for (const auto& [key, products] : by_rows) {
    if (products.size() < 2 || products.size() > ops::kMostJoined) continue;
    Node joined;
    joined.attrs = products[0].attrs;
    joined.from = products[0].from;
    joined.in = {key.first};
    std::vector<std::string> formats;
    for (const Node& p : products) {
      joined.in.push_back(p.in[ops::kBlWeights]);
      formats.push_back(p.attrs.get_string("format", ""));
    }
    ops::set_block_formats(joined.attrs, formats);
    for (const Node& p : products)
      joined.in.push_back(p.in.size() > ops::kBlBias ? p.in[ops::kBlBias] : ir::kNoValue);
    while (joined.in.back() == ir::kNoValue) joined.in.pop_back();
    const std::vector<ValueId> results = rw.add_all("block_linears", joined, products.size());
    for (size_t i = 0; i < products.size(); ++i) rw.replace(products[i].out[0], results[i]);
    ++changes;
  }
  graph.sort();
  return changes;
}

size_t share_packed_blocks(ir::Graph& graph) {
  std::set<ValueId> packed;
  for (const Node& node : graph.nodes()) {
    if (node.op != nullptr && node.op_name() == "block_linear") packed.insert(node.in[1]);
  }
  size_t changes = 0;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(ir::NodeId(static_cast<uint32_t>(n)));
    if (node.op == nullptr || node.op_name() != "block_gather" || packed.count(node.in[0]) == 0) continue;
    if (node.attrs.get_int("packed", 0) != 0) continue;
    node.attrs.set("packed", int64_t{1});
    ++changes;
  }
  return changes;
}

}  // namespace trireme::passes
