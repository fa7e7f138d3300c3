// Keeps weights of 4, 8 and 16 bits in their stored form for the products and lookups that read them.
#include "passes/precision/stored_products.h"

#include <algorithm>

#include "base/machine/cpu_info.h"
#include "ops/experts/experts.h"
#include "ops/table.h"
#include "ops/weight_only/weight_only.h"
#include "passes/precision/matrix_product.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

constexpr const char* kStored = "dequantize_weights";

/// True if all operands are known.
bool is_known(const Rewriter& rw, const Node& node) {
  return std::all_of(node.in.begin(), node.in.end(),
                     [&](ValueId id) { return id == ir::kNoValue || rw.known(id) != nullptr; });
}

ops::WeightForm form_of(const Rewriter& rw, const Node& node) {
  return ops::weight_form(node.attrs, rw.graph().type(node.in[ops::kDqWeights]).dtype,
                          node.operand(ops::kDqZero) != ir::kNoValue);
}

/// The node that a matrix is dequantized or cast by, and whether the value is [n, k] as stored or [k, n].
struct Source {
  Node node;
  bool by_rows = true;
};
std::optional<Source> source_of(const Rewriter& rw, ValueId id) {
  std::optional<Node> node = rw.producer(id, kStored);
  bool by_rows = true;
  if (!node) {
    const auto turned = rw.producer(id, "transpose");
    if (!turned || turned->attrs.get_ints("perm", {}) != std::vector<int64_t>{1, 0}) return std::nullopt;
    node = rw.producer(turned->in[0], kStored);
    by_rows = false;
  }
  if (!node || !is_known(rw, *node)) return std::nullopt;
  return Source{std::move(*node), by_rows};
}

/// x with its channels in the order in which the columns of the weights are stored.
ValueId in_stored_order(Rewriter& rw, ValueId x, ValueId order, const std::string& from) {
  const Tensor& given = *rw.known(order);
  const auto gather = [&](Tensor channels) {
    return rw.add("gather", {x, rw.constant(std::move(channels))}, {{"axis", int64_t{-1}}}, from);
  };
  if (tensor::is_absent(given)) return gather(tensor::absent(DType::i64, given.dims()));
  const std::span<const int32_t> places = given.data<int32_t>();
  std::vector<int64_t> channels(places.size(), -1);
  for (size_t j = 0; j < places.size(); ++j) {
    const auto at = static_cast<size_t>(places[j]);
    base::require(at < channels.size() && channels[at] < 0, "'", from,
                  "': an order of columns that is no permutation");
    channels[at] = static_cast<int64_t>(j);
  }
  return gather(
      Tensor::from<int64_t>({static_cast<int64_t>(channels.size())}, std::span<const int64_t>(channels)));
}

void copy_form(const ir::Attrs& from, ir::Attrs& to) {
  for (const char* name : {"bits", "group"}) {
    if (const auto* value = from.find(name)) to.set(name, *value);
  }
}

bool keep_stored_product(Rewriter& rw, const Node& node) {
  const std::optional<MatrixProduct> p = matrix_product(rw, node);
  if (!p) return false;
  const std::optional<Source> w = source_of(rw, p->w);
  if (!w || w->by_rows != p->by_rows) return false;
  const ops::WeightForm form = form_of(rw, w->node);
  const tensor::Shape& shape = rw.graph().type(w->node.out[0]).shape;
  if (ops::refuse_weight_form(form, shape[1].value()).has_value()) return false;
  ValueId x = p->x;
  if (const ValueId order = w->node.operand(ops::kDqOrder); order != ir::kNoValue)
    x = in_stored_order(rw, x, order, node.from);
  std::vector<ValueId> in{x, w->node.in[ops::kDqWeights], w->node.operand(ops::kDqScale),
                          w->node.operand(ops::kDqZero), p->bias};
  while (in.back() == ir::kNoValue) in.pop_back();
  ir::Attrs attrs;
  copy_form(w->node.attrs, attrs);
  finish_product(rw, node, *p, rw.add("weight_only_linear", in, attrs, node.from));
  return true;
}

/// Rows of a 16-bit table are looked up directly.
bool keep_stored_lookup(Rewriter& rw, const Node& node) {
  if (node.op_name() != "gather" || node.attrs.get_int("axis", 0) != 0 || node.attrs.has("first"))
    return false;
  const std::optional<Source> w = source_of(rw, node.in[0]);
  if (!w || !w->by_rows || form_of(rw, w->node).has_scales()) return false;
  const ValueId rows =
      rw.add("gather", {w->node.in[ops::kDqWeights], node.in[1]}, {{"axis", int64_t{0}}}, node.from);
  rw.replace(node.out[0], rw.add("cast", {rows}, {{"to", int64_t{1}}}, node.from));
  return true;
}

/// All processors, which are counted and given threads when the first weight is widened: most models have
/// none.
class WideningTeam {
 public:
  base::ThreadPool& pool() {
    if (!pool_) pool_.emplace(base::read_cpu_info().threads());
    return *pool_;
  }

 private:
  std::optional<base::ThreadPool> pool_;
};

/// The values that stored weights represent.
Tensor widened(const Rewriter& rw, const Node& node, base::ThreadPool& pool) {
  std::vector<Tensor> in;
  for (ValueId id : node.in) in.push_back(id == ir::kNoValue ? Tensor() : *rw.known(id));
  return ops::evaluate(*node.op, node.attrs, in, 1, pool)[0];
}

/// Products over experts read the stored weights of the chosen experts only.
bool keep_stored_experts(Rewriter& rw, const Node& node) {
  if (node.op_name() != "expert_linear") return false;
  const auto apart = rw.producer(node.in[ops::kExWeights], "reshape");
  const std::optional<Source> w = apart ? source_of(rw, apart->in[0]) : std::nullopt;
  const auto dims = rw.dims(node.in[ops::kExWeights]);
  if (!w || !w->by_rows || !dims || ops::refuse_weight_form(form_of(rw, w->node), (*dims)[2])) return false;
  ValueId x = node.in[ops::kExX];
  if (const ValueId order = w->node.operand(ops::kDqOrder); order != ir::kNoValue)
    x = in_stored_order(rw, x, order, node.from);
  std::vector<ValueId> in{x,
                          node.in[ops::kExChosen],
                          w->node.in[ops::kDqWeights],
                          w->node.operand(ops::kDqScale),
                          w->node.operand(ops::kDqZero),
                          node.operand(ops::kExpertPlaces.bias),
                          node.operand(ops::kExpertPlaces.shares)};
  while (in.back() == ir::kNoValue) in.pop_back();
  ir::Attrs attrs{{"experts", (*dims)[0]}};
  copy_form(w->node.attrs, attrs);
  ops::copy_experts_here(node.attrs, attrs);
  rw.replace(node.out[0], rw.add("weight_only_experts", in, attrs, node.from));
  return true;
}

}  // namespace

size_t keep_stored_weights(ir::Graph& graph) {
  Rewriter rw(graph);
  size_t changes = rw.for_each([&](ir::NodeId, const Node& node) {
    return keep_stored_product(rw, node) || keep_stored_lookup(rw, node) || keep_stored_experts(rw, node);
  });
  graph.sort();
  Rewriter left(graph);
  WideningTeam team;
  changes += left.for_each(kStored, [&](ir::NodeId, const Node& node) {
    if (!is_known(left, node)) return false;
    left.replace(node.out[0], left.constant(widened(left, node, team.pool())));
    return true;
  });
  graph.sort();
  return changes;
}

size_t widen_stored_floats(ir::Graph& graph, bool all_floats) {
  Rewriter rw(graph);
  WideningTeam team;
  std::vector<std::pair<ValueId, std::string>> names;
  const size_t changes = rw.for_each(kStored, [&](ir::NodeId, const Node& node) {
    const ops::WeightForm form = form_of(rw, node);
    if (form.type == DType::u8 || (form.has_scales() && !all_floats) || !is_known(rw, node)) return false;
    std::string name = rw.graph().value(node.in[0]).name;
    rw.graph().value(node.in[0]).name.clear();
    rw.replace(node.out[0], rw.graph().add_param(std::move(name), widened(rw, node, team.pool())));
    return true;
  });
  graph.sort();
  return changes;
}

}  // namespace trireme::passes
