// Recognizes the forms in which exporters write GELU, SiLU and hard-swish, and replaces each by one op.
#include <cmath>

#include "passes/rewriter.h"
#include "passes/fuse/transformer.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// A product flattened through mul and div-by-scalar nodes: scalar * leaves[0] * leaves[1] * ...
struct Product {
  double scalar = 1;
  std::vector<ValueId> leaves;
};

void flatten(const Rewriter& rw, ValueId id, bool root, Product& product) {
  if (const auto s = rw.scalar(id)) {
    product.scalar *= *s;
    return;
  }
  const auto mul = rw.producer(id, "mul");
  if (mul && (root || rw.single_use(id))) {
    for (ValueId in : mul->in) flatten(rw, in, false, product);
    return;
  }
  const auto div = rw.producer(id, "div");
  if (div && (root || rw.single_use(id)) && rw.scalar(div->in[1])) {
    product.scalar /= *rw.scalar(div->in[1]);
    flatten(rw, div->in[0], false, product);
    return;
  }
  product.leaves.push_back(id);
}

bool near(double a, double b, double relative = 1e-3) { return std::abs(a - b) <= relative * std::abs(b); }

/// x of add(x, scalar) if the scalar is `value`.
std::optional<ValueId> plus_scalar(const Rewriter& rw, ValueId id, double value) {
  const auto add = rw.producer(id, "add");
  if (!add || !rw.single_use(id)) return std::nullopt;
  const auto parts = rw.scalar_operand(*add);
  if (!parts || !near(parts->first, value)) return std::nullopt;
  return parts->second;
}

/// x of erf(x / sqrt 2) + 1.
std::optional<ValueId> erf_argument(const Rewriter& rw, ValueId id) {
  const auto inner = plus_scalar(rw, id, 1);
  if (!inner) return std::nullopt;
  const auto erf = rw.producer(*inner, "erf");
  if (!erf) return std::nullopt;
  Product p;
  flatten(rw, erf->in[0], true, p);
  if (p.leaves.size() != 1 || !near(p.scalar, 1 / std::sqrt(2.0))) return std::nullopt;
  return p.leaves[0];
}

/// True if `id` is x^3: pow(x, 3) or a product of three x.
bool is_cube(const Rewriter& rw, ValueId id, ValueId x) {
  if (const auto pow = rw.producer(id, "pow")) return pow->in[0] == x && rw.is_scalar(pow->in[1], 3);
  Product p;
  flatten(rw, id, true, p);
  return p.scalar == 1 && p.leaves == std::vector<ValueId>{x, x, x};
}

/// x of tanh(sqrt(2/pi) (x + 0.044715 x^3)) + 1.
std::optional<ValueId> tanh_argument(const Rewriter& rw, ValueId id) {
  const auto inner = plus_scalar(rw, id, 1);
  const auto tanh = inner ? rw.producer(*inner, "tanh") : std::nullopt;
  if (!tanh) return std::nullopt;
  Product p;
  flatten(rw, tanh->in[0], true, p);
  if (p.leaves.size() != 1 || !near(p.scalar, std::sqrt(2 / M_PI))) return std::nullopt;
  const auto sum = rw.producer(p.leaves[0], "add");
  if (!sum) return std::nullopt;
  for (size_t side : {size_t{0}, size_t{1}}) {
    const ValueId x = sum->in[side];
    Product cubic;
    flatten(rw, sum->in[1 - side], true, cubic);
    if (!near(cubic.scalar, 0.044715)) continue;
    if (cubic.leaves == std::vector<ValueId>{x, x, x}) return x;
    if (cubic.leaves.size() == 1 && is_cube(rw, cubic.leaves[0], x)) return x;
  }
  return std::nullopt;
}

bool gather_gelu(Rewriter& rw, const Node& node, const Product& p) {
  if (p.leaves.size() != 2 || !near(p.scalar, 0.5)) return false;
  for (size_t side : {size_t{0}, size_t{1}}) {
    const ValueId x = p.leaves[side], gate = p.leaves[1 - side];
    const bool erf = erf_argument(rw, gate) == x;
    if (!erf && tanh_argument(rw, gate) != x) continue;
    return rw.replace_same(
        node.out[0], rw.add("gelu", {x}, {{"approximate", std::string(erf ? "none" : "tanh")}}, node.from));
  }
  return false;
}

bool gather_gated(Rewriter& rw, const Node& node, const Product& p) {
  if (p.leaves.size() != 2) return false;
  for (size_t side : {size_t{0}, size_t{1}}) {
    const ValueId x = p.leaves[side], gate = p.leaves[1 - side];
    const auto sigmoid = rw.producer(gate, "sigmoid");
    if (sigmoid && sigmoid->in[0] == x && p.scalar == 1) {
      return rw.replace_same(node.out[0], rw.add("swish", {x}, {{"alpha", 1.0}}, node.from));
    }
    const auto hard = rw.producer(gate, "hard_sigmoid");
    const bool sixth = hard && near(hard->attrs.get_float("alpha", 0.2), 1.0 / 6) &&
                       near(hard->attrs.get_float("beta", 0.5), 0.5);
    const auto clip = rw.producer(gate, "clip");
    const bool relu6 = clip && clip->in.size() == 3 && rw.is_scalar(clip->in[1], 0) &&
                       rw.is_scalar(clip->in[2], 6) && plus_scalar(rw, clip->in[0], 3) == x &&
                       near(p.scalar, 1.0 / 6);
    if ((sixth && hard->in[0] == x && p.scalar == 1) || relu6) {
      return rw.replace_same(node.out[0], rw.add("hard_swish", {x}, {}, node.from));
    }
  }
  return false;
}

}  // namespace

size_t gather_activations(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) {
    if (node.op_name() != "mul" && node.op_name() != "div") return false;
    if (rw.uses(node.out[0]) == 0) return false;
    Product p;
    flatten(rw, node.out[0], true, p);
    return gather_gelu(rw, node, p) || gather_gated(rw, node, p);
  });
}

}  // namespace trireme::passes
