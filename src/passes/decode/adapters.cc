// Adds operands for adapters (LoRA) to the products of a language model.
#include "passes/decode/adapters.h"

#include <set>

#include "ops/stored_weights.h"
#include "ops/table.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::Dim;
using tensor::DType;
using tensor::Shape;

constexpr std::string_view kWeight = ".weight";

/// The stored weight that `id` is dequantized from; `id` itself if it is not dequantized.
ValueId stored_weight(const Rewriter& rw, ValueId id) {
  const Node* maker = rw.graph().producer(id);
  return maker != nullptr && ops::opens_stored_weight(maker->op->schema) ? maker->in[0] : id;
}

/// The module name of a product, from the name of its weight; empty if the product has none.
std::string module_of(const Rewriter& rw, const Node& node) {
  const ir::Value& weight = rw.graph().value(stored_weight(rw, node.in[1]));
  if (weight.kind != ir::ValueKind::param || !weight.name.ends_with(kWeight)) return {};
  return weight.name.substr(0, weight.name.size() - kWeight.size());
}

}  // namespace

std::string adapter_ranks(const std::string& module) { return "adapters." + module + ".ranks"; }
std::string adapter_down(const std::string& module) { return "adapters." + module + ".down"; }
std::string adapter_up(const std::string& module) { return "adapters." + module + ".up"; }

void add_adapters(DecodeGraph& form, int64_t slots, int64_t rank) {
  constexpr int64_t kMostSlots = 1 << 16, kMostRank = 1 << 12;
  base::require(slots > 0 && slots <= kMostSlots && rank > 0 && rank <= kMostRank, "room for ", slots,
                " adapters of rank ", rank, "; at most ", kMostSlots, " of rank ", kMostRank);
  form.adapters = {.slots = slots, .rank = rank, .modules = {}};
  ir::Graph& graph = form.graph;
  const Dim tokens = graph.type(graph.inputs()[kDecodeIds]).shape[1];
  const ValueId slot_of = graph.add_input("adapters", {DType::i32, Shape{tokens}});
  const ir::OpDef& op = ops::table().need("adapter_linear");
  std::set<std::string> known;
  Rewriter rw(graph);
  rw.for_each("linear", [&](ir::NodeId, const Node& node) {
    const std::string module = module_of(rw, node);
    const Shape &x = graph.type(node.in[0]).shape, &y = graph.type(node.out[0]).shape;
    const bool is_plain = x.has_rank() && x.rank() == 3 && y.has_rank() && y.rank() == 3 && x[1] == tokens &&
                          x[2].is_static() && y[2].is_static();
    // Excludes products of only the last tokens (fewer rows), and weights shared by two products.
    if (module.empty() || !is_plain || node.out.size() > 1 || !known.insert(module).second) return false;
    const int64_t in = x[2].value(), out = y[2].value();
    const ValueId ranks = graph.add_state(adapter_ranks(module), {DType::i32, Shape::of({slots})});
    const ValueId down = graph.add_state(adapter_down(module), {DType::f32, Shape::of({slots, rank, in})});
    const ValueId up = graph.add_state(adapter_up(module), {DType::f32, Shape::of({slots, rank, out})});
    const ValueId sum =
        graph.add(op, {node.out[0], node.in[0], slot_of, ranks, down, up}, {}, 1, node.from)[0];
    graph.replace_uses(node.out[0], sum);
    graph.set_operand(graph.value(sum).producer, 0, node.out[0]);
    form.adapters.modules.push_back(
        {.name = module, .in = in, .out = out, .is_transposed = node.attrs.get_int("transposed", 0) != 0});
    return true;
  });
  if (form.adapters.modules.empty())
    base::fail_unsupported("adapters for a graph none of whose products reads a named weight");
  graph.sort();
  graph.infer_all();
}

void place_adapters(const AdapterRoom& room, const tensor::MeshShape& mesh,
                    std::map<std::string, tensor::Shard>& placed) {
  constexpr int kFactorDim = 2;  // of adapter_down() and adapter_up(), behind slots and rank
  for (const AdapterModule& m : room.modules) {
    const auto at = placed.find(m.name + std::string(kWeight));
    if (at == placed.end()) continue;
    const tensor::Shard weight = at->second;
    for (size_t axis = 0; axis < mesh.axes().size(); ++axis) {
      const tensor::Placement on = weight.on(axis);
      if (!on.is_split()) continue;
      const bool is_by_output = (on.dim == 0) == m.is_transposed;
      const std::string factor = is_by_output ? adapter_up(m.name) : adapter_down(m.name);
      placed[factor].set(axis, tensor::Placement::split(kFactorDim, on.sections));
    }
  }
}

}  // namespace trireme::passes
