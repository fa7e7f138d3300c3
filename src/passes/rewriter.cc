// Common parts of pattern passes: finds producers, single uses and scalar constants, and replaces values.
#include "passes/rewriter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/table.h"
#include "tensor/absent.h"

namespace trireme::passes {

// Counts only nodes that lead to an output: nodes that a rewrite left behind are no readers.
void Rewriter::count() {
  uses_.assign(graph_.values().size(), 0);
  read_results_.assign(graph_.nodes().size(), 0);
  for (const ir::Node& node : graph_.nodes()) {
    if (node.op != nullptr && node.op->schema.updates_state()) gain(node.out[0], 1);
  }
  for (ir::ValueId id : graph_.outputs()) gain(id, 2);
}

void Rewriter::gain(ir::ValueId first, size_t count) {
  uses_.resize(graph_.values().size(), 0);
  read_results_.resize(graph_.nodes().size(), 0);
  std::vector<std::pair<ir::ValueId, size_t>> stack{{first, count}};
  while (!stack.empty()) {
    const auto [id, more] = stack.back();
    stack.pop_back();
    const bool was_read = uses_[ir::index(id)] > 0;
    uses_[ir::index(id)] += more;
    const ir::NodeId by = graph_.value(id).producer;
    if (by == ir::kNoNode || was_read || more == 0) continue;
    const bool wakes = read_results_[ir::index(by)]++ == 0 && graph_.node(by).op != nullptr;
    if (!wakes) continue;
    for (ir::ValueId in : graph_.node(by).in) {
      if (in != ir::kNoValue) stack.emplace_back(in, 1);
    }
  }
}

void Rewriter::lose_all(ir::ValueId first) {
  std::vector<ir::NodeId> dead;
  const auto lose = [&](ir::ValueId id) {
    const ir::NodeId by = graph_.value(id).producer;
    if (by != ir::kNoNode && --read_results_[ir::index(by)] == 0) dead.push_back(by);
  };
  if (std::exchange(uses_[ir::index(first)], 0) > 0) lose(first);
  while (!dead.empty()) {
    const ir::NodeId id = dead.back();
    dead.pop_back();
    // An erased node still knows its operands.
    for (ir::ValueId in : graph_.node(id).in) {
      if (in == ir::kNoValue || uses_[ir::index(in)] == 0) continue;
      if (--uses_[ir::index(in)] == 0) lose(in);
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
  if (t == nullptr || t->elements() != 1 || tensor::bits_of(t->dtype()) < 8 || tensor::is_absent(*t))
    return std::nullopt;
  return t->to_doubles()[0];
}

bool Rewriter::is_scalar(ir::ValueId id, double value, double tolerance) const {
  const std::optional<double> s = scalar(id);
  return s && std::abs(*s - value) <= tolerance * std::max(1.0, std::abs(value));
}

std::optional<std::vector<int64_t>> Rewriter::ints(ir::ValueId id) const {
  const tensor::Tensor* t = graph_.known(id);
  if (t == nullptr || !tensor::is_integer(t->dtype()) || t->elements() > 64 || tensor::is_absent(*t))
    return std::nullopt;
  return t->to_ints();
}

std::optional<tensor::Dims> Rewriter::dims(ir::ValueId id) const {
  if (id == ir::kNoValue || !graph_.type(id).shape.is_static()) return std::nullopt;
  return graph_.type(id).shape.to_dims();
}

std::optional<tensor::Dims> Rewriter::weight_dims(ir::ValueId id) const {
  if (id == ir::kNoValue) return std::nullopt;
  const bool is_state = graph_.value(id).kind == ir::ValueKind::state;
  if (!is_state && graph_.known(id) == nullptr) return std::nullopt;
  return graph_.type(id).shape.to_dims();
}

ir::ValueId Rewriter::reshaped_weight(ir::ValueId id, const tensor::Dims& to, const std::string& from) {
  if (graph_.type(id).shape.to_dims() == to) return id;
  if (const tensor::Tensor* t = graph_.known(id)) return constant(t->reshaped(to));
  const ir::ValueId shape = constant(
      tensor::Tensor::from<int64_t>({static_cast<int64_t>(to.size())}, std::span<const int64_t>(to)));
  return add("reshape", {id, shape}, {}, from);
}

ir::ValueId Rewriter::reshaped(ir::ValueId id, const tensor::Dims& to, const std::string& from) {
  if (dims(id) == to) return id;
  const ir::ValueId shape = constant(
      tensor::Tensor::from<int64_t>({static_cast<int64_t>(to.size())}, std::span<const int64_t>(to)));
  return add("reshape", {id, shape}, {{"allowzero", int64_t{1}}}, from);
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

std::vector<ir::ValueId> Rewriter::add_all(std::string_view op, const ir::Node& like, size_t results) {
  const auto ids = graph_.add(ops::table().need(op), like.in, like.attrs, results, like.from);
  uses_.resize(graph_.values().size(), 0);
  return ids;
}

void Rewriter::replace(ir::ValueId from, ir::ValueId to) {
  if (graph_.value(to).name.empty()) graph_.value(to).name = graph_.value(from).name;
  if (from == to) return;
  uses_.resize(graph_.values().size(), 0);
  const size_t moved = uses(from);
  graph_.replace_uses(from, to);
  if (moved == 0) return;
  gain(to, moved);
  lose_all(from);
}

bool Rewriter::replace_same(ir::ValueId from, ir::ValueId to) {
  const tensor::TensorType &a = graph_.type(from), &b = graph_.type(to);
  if (a.dtype != b.dtype || !a.shape.is_static() || !(a.shape == b.shape)) return false;
  replace(from, to);
  return true;
}

void leave_out(ir::Graph& graph, const ir::Node& original, const std::vector<ir::ValueId>& copy) {
  for (size_t i = 0; i < copy.size(); ++i) {
    if (original.out[i] == ir::kNoValue) graph.node(graph.value(copy[i]).producer).out[i] = ir::kNoValue;
  }
}

}  // namespace trireme::passes
