// Builds graphs by op name: the functions that all model builders share.
#include "model/builder.h"

#include "ops/table.h"

namespace trireme::model {

using ir::ValueId;
using tensor::Tensor;

Builder Builder::within(std::string scope) const {
  Builder inner(graph_);
  inner.scope_ = scope_.empty() ? std::move(scope) : scope_ + "." + scope;
  return inner;
}

ValueId Builder::op(std::string_view name, std::vector<ValueId> in, ir::Attrs attrs) {
  return ops(name, std::move(in), std::move(attrs), 1)[0];
}

std::vector<ValueId> Builder::ops(std::string_view name, std::vector<ValueId> in, ir::Attrs attrs,
                                  size_t out_count) {
  return graph_.add(ops::table().need(name), std::move(in), std::move(attrs), out_count, scope_);
}

ValueId Builder::ints(const std::vector<int64_t>& values) {
  return graph_.add_constant(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
}

ValueId Builder::scalar(float value) { return graph_.add_constant(Tensor::scalar<float>(value)); }

ValueId Builder::linear(ValueId x, ValueId weight, ValueId bias) {
  return op("linear", {x, weight, bias}, {{"transposed", int64_t{1}}});
}

ValueId Builder::reshape(ValueId x, const std::vector<int64_t>& shape) {
  return op("reshape", {x, ints(shape)});
}

ValueId Builder::transpose(ValueId x, const std::vector<int64_t>& perm) {
  return op("transpose", {x}, {{"perm", perm}});
}

}  // namespace trireme::model
