// Adds nodes to a graph by ONNX operator name; finds the op for an ONNX name.
#include "model/onnx/emitter.h"

#include <algorithm>
#include <array>
#include <map>

#include "ops/table.h"

namespace trireme::model::onnx {

using ir::ValueId;
using tensor::Tensor;

namespace {

using OpsByName = std::map<std::string, const ir::OpDef*, std::less<>>;

const OpsByName& ops_by_onnx_name() {
  static const OpsByName all = [] {
    OpsByName ops;
    for (const ir::OpDef& op : ops::table().all()) {
      if (!op.schema.onnx.empty()) ops.emplace(op.schema.onnx, &op);
    }
    return ops;
  }();
  return all;
}

/// The number of letters that two names do not share, with multiplicity: cheap, and sufficient for a hint.
size_t difference(std::string_view a, std::string_view b) {
  std::array<int, 256> count{};
  for (char c : a) ++count[static_cast<uint8_t>(c)];
  for (char c : b) --count[static_cast<uint8_t>(c)];
  size_t total = 0;
  for (int n : count) total += static_cast<size_t>(std::abs(n));
  return total;
}

}  // namespace

void PendingNode::set_input(size_t i, ValueId value) {
  if (in.size() <= i) in.resize(i + 1, ir::kNoValue);
  in[i] = value;
}

ValueId Emitter::ints(const std::vector<int64_t>& values) {
  return constant(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
}

ValueId Emitter::int_scalar(int64_t value) { return constant(Tensor::scalar<int64_t>(value)); }

ValueId Emitter::scalar_of(tensor::DType dtype, double value) {
  return tensor::visit_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return constant(Tensor::scalar<T>(static_cast<T>(value)));
  });
}

ValueId Emitter::emit(std::string_view onnx_op, std::vector<ValueId> in, ir::Attrs attrs) {
  return emit_many(onnx_op, std::move(in), std::move(attrs), 1)[0];
}

std::vector<ValueId> Emitter::emit_many(std::string_view onnx_op, std::vector<ValueId> in, ir::Attrs attrs,
                                        size_t out_count) {
  return graph_.add(need_onnx_op(onnx_op), std::move(in), std::move(attrs), out_count, from_);
}

const ir::OpDef* find_onnx_op(std::string_view onnx_op) {
  const OpsByName& ops = ops_by_onnx_name();
  const auto at = ops.find(onnx_op);
  return at == ops.end() ? nullptr : at->second;
}

const ir::OpDef& need_onnx_op(std::string_view onnx_op, std::string_view domain) {
  const ir::OpDef* op = domain.empty() ? find_onnx_op(onnx_op) : nullptr;
  if (op != nullptr) return *op;
  const OpsByName& ops = ops_by_onnx_name();
  const auto nearest = std::min_element(ops.begin(), ops.end(), [&](const auto& a, const auto& b) {
    return difference(a.first, onnx_op) < difference(b.first, onnx_op);
  });
  const std::string_view shown = onnx_op.substr(0, 100);
  base::fail_unsupported("no operator '", shown, "' in domain '",
                         domain.empty() ? "ai.onnx" : domain.substr(0, 100), "'",
                         nearest == ops.end() ? "" : "; nearest known: '" + nearest->first + "'");
}

}  // namespace trireme::model::onnx
