// Interval arithmetic on integers, and the check that lookups stay within their own rows.
#include "passes/independence/numbered_rows.h"

#include <algorithm>

namespace trireme::passes {
namespace {

/// Longer index tuples are not followed.
constexpr int64_t kMostPlaces = 16;
/// Larger constants are not read: they are weights.
constexpr int64_t kMostBytes = 1 << 20;

}  // namespace

std::optional<IndexPlace> NumberedRows::counted(const ir::Node& node,
                                                const std::vector<ops::Counts>& in) const {
  const auto counted = ops::counted_rows(*node.op, in);
  if (!counted || counted->each_row == 0) return std::nullopt;
  return IndexPlace{.dim = 0, .outer = 1, .inner = counted->each_row};
}

NumberedRows::Known NumberedRows::known_of(ir::ValueId id) const {
  if (id == ir::kNoValue) return {};
  if (const auto at = known_.find(id); at != known_.end() && at->second.size() == 1) return at->second[0];
  if (use(id).kind == IndexUse::Kind::numbered) return {.is_clean = false};
  const tensor::Tensor* constant = graph_.known(id);
  if (constant == nullptr || constant->bytes() > kMostBytes || use(id).kind != IndexUse::Kind::apart)
    return {};
  return {.number = ops::range_of_constant(*constant)};
}

std::vector<NumberedRows::Known> NumberedRows::places_of(ir::ValueId id, int64_t extent) const {
  if (const auto at = known_.find(id); at != known_.end() && at->second.size() > 1) return at->second;
  return std::vector<Known>(static_cast<size_t>(extent), known_of(id));
}

void NumberedRows::note(const ir::Node& node, const std::vector<ops::Counts>& in) {
  const IndexUse& result = use(node.out[0]);
  if (result.kind != IndexUse::Kind::apart && result.kind != IndexUse::Kind::numbered) return;
  const ir::NodeView view = graph_.view(node);
  const auto is_open = [](const tensor::TensorType& type) { return !type.shape.is_static(); };
  if (is_open(view.out[0]) || std::any_of(view.in.begin(), view.in.end(), is_open)) return;
  std::vector<Known>& made = known_[node.out[0]];
  const bool is_clean = result.kind == IndexUse::Kind::apart;
  if (const auto counted = ops::counted_rows(*node.op, in)) {
    made = {{is_clean, counted->number}};
    return;
  }
  if (ops::joins_last_dimension(*node.op, view) && view.out_dims(0).back() <= kMostPlaces) {
    for (size_t i = 0; i < node.in.size(); ++i) {
      const std::vector<Known> part = places_of(node.in[i], view.in_dims(i).back());
      made.insert(made.end(), part.begin(), part.end());
    }
    return;
  }
  std::vector<std::optional<ops::RowNumber>> operands;
  for (const ir::ValueId id : node.in) operands.push_back(known_of(id).number);
  made = {{is_clean, ops::follow_row_numbers(*node.op, view, operands)}};
}

std::optional<IndexPlace> NumberedRows::looks_up_own(const ir::Node& node) const {
  const ir::NodeView view = graph_.view(node);
  const auto lookup = ops::entry_lookup(*node.op, view);
  if (!lookup || use(node.in[0]).kind != IndexUse::Kind::along ||
      use(node.in[1]).kind != IndexUse::Kind::numbered)
    return std::nullopt;
  const IndexPlace data = use(node.in[0]).place, numbers = use(node.in[1]).place;
  const auto is_own = [&](const Known& known) {
    return data.outer == 1 && known.number && known.number->is_own_entry(data.inner);
  };
  if (!lookup->by_columns) {
    if (data.dim != lookup->dim || !is_own(known_of(node.in[1]))) return std::nullopt;
    return IndexPlace{numbers.dim + lookup->dim, numbers.outer, numbers.inner};
  }
  const tensor::Dims indices = view.in_dims(1);
  const auto columns = static_cast<size_t>(indices.back());
  if (numbers.dim + 1 >= indices.size() || data.dim >= columns) return std::nullopt;
  const std::vector<Known> known = places_of(node.in[1], indices.back());
  for (size_t d = 0; d < columns; ++d) {
    if (d == data.dim ? !is_own(known[d]) : !known[d].is_clean) return std::nullopt;
  }
  return numbers;
}

}  // namespace trireme::passes
