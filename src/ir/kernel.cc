// The operator table: lookup by name, nearest name in errors, keys of packed weights.
#include "ir/kernel.h"

#include <algorithm>

#include "base/text/options.h"

namespace trireme::ir {

std::string pack_key(const tensor::Tensor& weight, std::string_view format) {
  return base::concat(static_cast<const void*>(weight.raw()), " ", weight.type().to_string(), " ", format);
}

OpTable::OpTable(std::vector<OpDef> ops) : ops_(std::move(ops)) {
  std::sort(ops_.begin(), ops_.end(),
            [](const OpDef& a, const OpDef& b) { return a.schema.name < b.schema.name; });
  for (size_t i = 1; i < ops_.size(); ++i) {
    base::check(ops_[i - 1].schema.name != ops_[i].schema.name, "two ops are called '", ops_[i].schema.name,
                "'");
  }
}

const OpDef* OpTable::find(std::string_view name) const {
  auto at = std::lower_bound(ops_.begin(), ops_.end(), name,
                             [](const OpDef& op, std::string_view n) { return op.schema.name < n; });
  return at != ops_.end() && at->schema.name == name ? &*at : nullptr;
}

const OpDef& OpTable::need(std::string_view name) const {
  if (const OpDef* op = find(name)) return *op;
  const auto nearest = std::min_element(ops_.begin(), ops_.end(), [&](const OpDef& a, const OpDef& b) {
    return base::edit_distance(a.schema.name, name) < base::edit_distance(b.schema.name, name);
  });
  base::fail(base::ErrorCode::not_found, "no op '", name, "'",
             nearest == ops_.end() ? "" : "; nearest: '" + nearest->schema.name + "'");
}

}  // namespace trireme::ir
