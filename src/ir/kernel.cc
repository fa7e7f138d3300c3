// The operator table: lookup by name, nearest name in errors, keys of packed weights.
#include "ir/kernel.h"

#include <algorithm>

namespace trireme::ir {
namespace {

/// Levenshtein distance: insertions, deletions and substitutions from a to b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

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
    return edit_distance(a.schema.name, name) < edit_distance(b.schema.name, name);
  });
  base::fail(base::ErrorCode::not_found, "no op '", name, "'",
             nearest == ops_.end() ? "" : "; nearest: '" + nearest->schema.name + "'");
}

}  // namespace trireme::ir
