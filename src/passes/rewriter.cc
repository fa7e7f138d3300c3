// What pattern passes share: looking up producers, single uses and scalar constants; replacing values.
#include "passes/rewriter.h"

#include <cmath>

#include "ops/table.h"

namespace trireme::passes {

void Rewriter::recount() {
  uses_.assign(graph_.values().size(), 0);
  // Only nodes that lead to an output count: what a rewrite left behind must not look like a reader.
  std::vector<char> live(graph_.nodes().size(), 0);
  std::vector<ir::ValueId> stack(graph_.outputs());
  for (ir::ValueId id : graph_.outputs()) uses_[ir::index(id)] += 2;
  for (size_t n = 0; n < graph_.nodes().size(); ++n) {
    const ir::Node& node = graph_.nodes()[n];
    if (node.op != nullptr && node.op->schema.updates_state) stack.push_back(node.out[0]);
  }
  while (!stack.empty()) {
    const ir::ValueId id = stack.back();
    stack.pop_back();
    if (graph_.producer(id) == nullptr) continue;
    const size_t n = ir::index(graph_.value(id).producer);
    if (live[n]) continue;
    live[n] = 1;
    for (ir::ValueId in : graph_.nodes()[n].in) {
      if (in == ir::kNoValue) continue;
      ++uses_[ir::index(in)];
      stack.push_back(in);
    }
  }
}

std::optional<ir::Node> Rewriter::producer(ir::ValueId id, std::string_view op) const {
  const ir::Node* node = graph_.producer(id);
  if (node == nullptr || node->op_name() != op) return std::nullopt;
  return *node;
}

std::optional<double> Rewriter::scalar(ir::ValueId id) const {
  const tensor::Tensor* t = graph_.known(id);
  if (t == nullptr || t->elements() != 1 || tensor::bits_of(t->dtype()) < 8) return std::nullopt;
  return t->to_doubles()[0];
}

bool Rewriter::is_scalar(ir::ValueId id, double value, double tolerance) const {
  const std::optional<double> s = scalar(id);
  return s && std::abs(*s - value) <= tolerance * std::max(1.0, std::abs(value));
}

std::optional<std::vector<int64_t>> Rewriter::ints(ir::ValueId id) const {
  const tensor::Tensor* t = graph_.known(id);
  if (t == nullptr || !tensor::is_integer(t->dtype()) || t->elements() > 64) return std::nullopt;
  return t->to_ints();
}

std::optional<tensor::Dims> Rewriter::dims(ir::ValueId id) const {
  if (id == ir::kNoValue || !graph_.type(id).shape.is_static()) return std::nullopt;
  return graph_.type(id).shape.to_dims();
}

std::optional<std::pair<double, ir::ValueId>> Rewriter::scalar_operand(const ir::Node& node) const {
  const auto split = either(node, [&](ir::ValueId id) { return scalar(id).has_value(); });
  if (!split) return std::nullopt;
  return std::pair{*scalar(split->first), split->second};
}

ir::ValueId Rewriter::add(std::string_view op, std::vector<ir::ValueId> in, ir::Attrs attrs,
                          const std::string& from) {
  const ir::ValueId id = graph_.add1(ops::table().need(op), std::move(in), std::move(attrs), from);
  uses_.resize(graph_.values().size(), 0);
  return id;
}

void Rewriter::replace(ir::ValueId from, ir::ValueId to) {
  if (graph_.value(to).name.empty()) graph_.value(to).name = graph_.value(from).name;
  graph_.replace_uses(from, to);
  recount();
}

bool Rewriter::replace_same(ir::ValueId from, ir::ValueId to) {
  const tensor::TensorType &a = graph_.type(from), &b = graph_.type(to);
  if (a.dtype != b.dtype || !a.shape.is_static() || !(a.shape == b.shape)) return false;
  replace(from, to);
  return true;
}

}  // namespace trireme::passes
