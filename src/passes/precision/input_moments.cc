// Measures the inputs of products on real texts.
#include "passes/precision/input_moments.h"

#include <optional>

#include "ops/experts/experts.h"
#include "ops/stored_weights.h"
#include "passes/precision/matrix_product.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::Tensor;

/// The param that a matrix is derived from, or null.
const ir::Value* param_of(const ir::Graph& graph, ValueId id) {
  while (true) {
    const ir::Value& v = graph.value(id);
    if (v.kind == ir::ValueKind::param) return &v;
    const ir::Node* node = graph.producer(id);
    if (node == nullptr) return nullptr;
    const std::string_view op = node->op_name();
    const bool is_same = ops::opens_stored_weight(node->op->schema) || op == "transpose";
    if (!is_same && !node->op->schema.is_view) return nullptr;
    // Columns in another stored order would require the same order for x.
    if (op == "dequantize_weights" && node->in.size() > 3 && node->in[3] != ir::kNoValue) return nullptr;
    id = node->in[0];
  }
}

}  // namespace

std::map<std::string, ProductInput> product_inputs(const ir::Graph& given) {
  ir::Graph graph = given;
  Rewriter rw(graph);
  std::map<std::string, ProductInput> found;
  std::set<std::string> twice;
  rw.for_each([&](ir::NodeId, const ir::Node& node) {
    std::optional<MatrixProduct> p = matrix_product(rw, node);
    // All tokens are taken as a sample of those that choose an expert.
    const bool is_spread = node.op_name() == "expert_linear" && node.in.size() <= ops::kExpertPlaces.shares;
    if (is_spread) p = MatrixProduct{.x = node.in[ops::kExX], .w = node.in[ops::kExWeights]};
    const ir::Value* weight = p ? param_of(graph, p->w) : nullptr;
    const tensor::Shape& x = p ? graph.type(p->x).shape : tensor::Shape{};
    if (weight == nullptr || !x.has_rank() || x.rank() < 2 || !x[x.rank() - 1].is_static()) return false;
    const ProductInput input{p->x, x[x.rank() - 1].value()};
    const auto [at, is_new] = found.emplace(weight->name, input);
    if (!is_new && at->second.x != p->x) twice.insert(weight->name);
    return false;
  });
  for (const std::string& name : twice) found.erase(name);
  return found;
}

MomentsGraph input_moments(const ir::Graph& given, const std::set<std::string>& weights, bool whole) {
  MomentsGraph made{.graph = given, .output_of = {}};
  const std::map<std::string, ProductInput> inputs = product_inputs(given);
  Rewriter rw(made.graph);
  std::map<ValueId, size_t> numbers;
  std::vector<ValueId> outputs;
  for (const std::string& weight : weights) {
    const auto input = inputs.find(weight);
    if (input == inputs.end()) continue;
    const ValueId x = input->second.x;
    const auto [at, is_new] = numbers.try_emplace(x, outputs.size());
    made.output_of[weight] = at->second;
    if (!is_new) continue;
    const auto ints = [&](std::vector<int64_t> values) {
      return rw.constant(
          Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, std::span<const int64_t>(values)));
    };
    const ValueId rows = rw.add("reshape", {x, ints({-1, input->second.depth})}, {}, weight);
    if (whole) {
      const ValueId columns = rw.add("transpose", {rows}, {{"perm", std::vector<int64_t>{1, 0}}}, weight);
      outputs.push_back(rw.add("matmul", {columns, rows}, {}, weight));
    } else {
      const ValueId squares = rw.add("mul", {rows, rows}, {}, weight);
      outputs.push_back(rw.add("reduce_sum", {squares, ints({0})}, {{"keepdims", int64_t{0}}}, weight));
    }
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < outputs.size(); ++i) names.push_back(std::to_string(i));
  made.graph.set_outputs(std::move(outputs), std::move(names));
  made.graph.sort();
  return made;
}

}  // namespace trireme::passes
