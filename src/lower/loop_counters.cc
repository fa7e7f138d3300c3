// Follows whole numbers through additions, casts and views back to the counters of a loop.
#include "lower/loop_counters.h"

#include <string_view>

#include "ops/elementwise/cast.h"

namespace trireme::lower {

using ir::Node;
using ir::ValueId;

namespace {

constexpr int kMostSteps = 32;  // of a chain of nodes that is followed

bool is_whole_number(const tensor::TensorType& type) {
  return (type.dtype == tensor::DType::i64 || type.dtype == tensor::DType::i32) && type.shape.elements() == 1;
}

/// The operand whose one element the node's result has.
ValueId same_element(const Node& node) {
  return node.op->schema.is_view || node.op_name() == "identity" ? node.in[0] : ir::kNoValue;
}

}  // namespace

LoopCounters::LoopCounters(const ir::Graph& body, const LoopSignature& signature) : body_(body) {
  const auto is_number = [&](size_t input) { return is_whole_number(body.type(body.inputs()[input])); };
  for (size_t i = signature.first_state(); i < signature.first_slice(); ++i) {
    if (is_number(i)) inputs_[body.inputs()[i]] = i;
  }
  for (size_t s = 0; s < signature.states; ++s) {
    const size_t input = signature.first_state() + s;
    const auto next = follow(body.outputs()[signature.first_state_result() + s], 0);
    if (is_number(input) && next && next->counter == input) steps_[input] = next->offset;
  }
  if (signature.is_scan) return;
  inputs_[body.inputs()[0]] = 0;
  steps_[0] = 1;
}

std::optional<int64_t> LoopCounters::constant(ValueId id) const {
  const tensor::Tensor* known = body_.known(id);
  if (known == nullptr || !is_whole_number(body_.type(id))) return std::nullopt;
  return known->to_ints()[0];
}

std::optional<RoundNumber> LoopCounters::follow(ValueId id, int depth) const {
  if (id == ir::kNoValue || depth > kMostSteps || !is_whole_number(body_.type(id))) return std::nullopt;
  if (const auto at = inputs_.find(id); at != inputs_.end()) return RoundNumber{at->second, 0};
  const Node* node = body_.producer(id);
  if (node == nullptr) return std::nullopt;
  if (const ValueId same = same_element(*node); same != ir::kNoValue) return follow(same, depth + 1);
  if (ops::is_cast(node->op->schema)) return follow(node->in[0], depth + 1);
  const bool adds = node->op_name() == "add";
  if (!adds && node->op_name() != "sub") return std::nullopt;
  for (const size_t counted : {0, 1}) {
    const auto by = constant(node->in[1 - counted]);
    if (!by || (!adds && counted == 1)) continue;
    std::optional<RoundNumber> number = follow(node->in[counted], depth + 1);
    if (number) number->offset += adds ? *by : -*by;
    return number;
  }
  return std::nullopt;
}

std::optional<RoundNumber> LoopCounters::number(ValueId id) const {
  const std::optional<RoundNumber> found = follow(id, 0);
  return found && steps_.contains(found->counter) ? found : std::nullopt;
}

std::optional<int64_t> LoopCounters::step(size_t input) const {
  const auto at = steps_.find(input);
  return at == steps_.end() ? std::nullopt : std::optional(at->second);
}

RoundLimits ConditionReader::read(ValueId condition, ValueId given) const {
  RoundLimits out;
  out.is_all = add(condition, given, out, 0);
  return out;
}

bool ConditionReader::add_limit(ValueId number, ValueId limit, bool or_equal, RoundLimits& out) const {
  const tensor::TensorType& type = body_.type(limit);
  const bool is_real = type.dtype == tensor::DType::f32 || type.dtype == tensor::DType::f64;
  if (!is_same_[ir::index(limit)] || type.shape.elements() != 1 || (!is_real && !is_whole_number(type)))
    return false;
  const Node* made = body_.producer(number);  // older comparisons take floats alone
  if (is_real && made != nullptr && ops::is_cast(made->op->schema)) number = made->in[0];
  const auto counted = counters_.number(number);
  if (!counted) return false;
  if (*counters_.step(counted->counter) <= 0) return false;
  out.limits.push_back({*counted, limit, or_equal});
  return true;
}

bool ConditionReader::add(ValueId id, ValueId given, RoundLimits& out, int depth) const {
  if (id == given) return true;
  if (const tensor::Tensor* known = body_.known(id))
    return known->elements() == 1 && known->to_ints()[0] != 0;
  const Node* node = body_.producer(id);
  if (node == nullptr || depth > kMostSteps) return false;
  if (const ValueId same = same_element(*node); same != ir::kNoValue) return add(same, given, out, depth + 1);
  const std::string_view op = node->op_name();
  if (op == "and") {
    const bool first = add(node->in[0], given, out, depth + 1);
    return add(node->in[1], given, out, depth + 1) && first;
  }
  if (op == "less" || op == "less_or_equal")
    return add_limit(node->in[0], node->in[1], op == "less_or_equal", out);
  if (op == "greater" || op == "greater_or_equal")
    return add_limit(node->in[1], node->in[0], op == "greater_or_equal", out);
  return false;
}

}  // namespace trireme::lower
