// Interval arithmetic on row numbers, and the operators that make, keep and use them.
#include "ops/row_numbers.h"

#include <algorithm>

namespace trireme::ops {
namespace {

using ir::NodeView;
using tensor::DType;

/// Row numbers and extents are far smaller; larger ones are not tracked, so nothing overflows.
constexpr int64_t kMost = int64_t{1} << 40;

bool is_index_type(DType type) { return type == DType::i64 || type == DType::i32; }

/// 32 bits hold the number of a row but not necessarily a multiple of it, which might become negative and
/// count from the end.
bool fits(const RowNumber& number, DType type) { return type == DType::i64 || number.each <= 1; }

std::optional<RowNumber> bounded(__int128 each, __int128 low, __int128 high) {
  for (const __int128 v : {each, low, high}) {
    if (v > kMost || v < -kMost) return std::nullopt;
  }
  return RowNumber{static_cast<int64_t>(each), static_cast<int64_t>(low), static_cast<int64_t>(high)};
}

std::optional<RowNumber> sum(const RowNumber& a, const RowNumber& b) {
  return bounded(__int128{a.each} + b.each, __int128{a.low} + b.low, __int128{a.high} + b.high);
}
RowNumber negative(const RowNumber& a) { return {-a.each, -a.high, -a.low}; }

/// Products are tracked only if one factor is a constant.
std::optional<RowNumber> product(const RowNumber& a, const RowNumber& b) {
  if (b.each != 0 || b.low != b.high) return a.each != 0 || a.low != a.high ? std::nullopt : product(b, a);
  const __int128 by = b.low;
  return bounded(a.each * by, std::min(a.low * by, a.high * by), std::max(a.low * by, a.high * by));
}

/// Whether every element of the result is one of operand 0: no zeros are added and no bytes are
/// reinterpreted.
bool only_moves(const ir::OpSchema& op) {
  return (op.is_view && op.moves == 1) || op.name == "expand" || op.name == "transpose";
}

std::optional<RowNumber> result_of(const ir::OpSchema& op, const std::vector<std::optional<RowNumber>>& in) {
  if (only_moves(op) || op.name == "cast") return in[0];
  if (in.size() != 2 || !in[1]) return std::nullopt;
  if (op.name == "add") return sum(*in[0], *in[1]);
  if (op.name == "sub") return sum(*in[0], negative(*in[1]));
  if (op.name == "mul") return product(*in[0], *in[1]);
  return std::nullopt;
}

}  // namespace

std::optional<CountedRows> counted_rows(const ir::OpDef& op, const std::vector<Counts>& in) {
  if (op.schema.name != "range" || in.size() != 3) return std::nullopt;
  for (const Counts& of : in) {
    if (of.size() != 1 || of[0].is_any) return std::nullopt;
  }
  const Count start = in[0][0], limit = in[1][0], step = in[2][0];
  if (!start.is_plain() || !step.is_plain() || step.fixed <= 0) return std::nullopt;
  if (limit.each == 0) {
    const auto number = bounded(0, start.fixed, limit.fixed - 1);
    return number && limit.fixed > start.fixed ? std::optional(CountedRows{*number, 0}) : std::nullopt;
  }
  if (start.fixed != limit.fixed || limit.each < 0 || limit.each % step.fixed != 0) return std::nullopt;
  const auto number = bounded(limit.each, start.fixed, __int128{start.fixed} + limit.each - step.fixed);
  return number ? std::optional(CountedRows{*number, limit.each / step.fixed}) : std::nullopt;
}

std::optional<RepeatedForRows> repeated_for_rows(const ir::OpDef& op, const NodeView& node,
                                                 const std::vector<Counts>& in) {
  if (op.schema.name != "tile" || in.size() != 2 || !node.in[0].shape.is_static()) return std::nullopt;
  const tensor::Dims x = node.in_dims(0);
  if (in[1].size() != x.size()) return std::nullopt;
  std::optional<RepeatedForRows> found;
  for (size_t d = 0; d < x.size(); ++d) {
    if (in[1][d].is_plain()) continue;
    if (found || !in[1][d].is_multiple()) return std::nullopt;
    found = {d, in[1][d].each * x[d]};
  }
  return found && found->each_row > 0 ? found : std::nullopt;
}

std::optional<RowNumber> follow_row_numbers(const ir::OpDef& op, const NodeView& node,
                                            const std::vector<std::optional<RowNumber>>& in) {
  if (node.out.size() != 1 || !is_index_type(node.out[0].dtype) || in.empty() || !in[0]) return std::nullopt;
  if (!is_index_type(node.in[0].dtype)) return std::nullopt;
  const std::optional<RowNumber> made = result_of(op.schema, in);
  return made && fits(*made, node.out[0].dtype) ? made : std::nullopt;
}

std::optional<RowNumber> range_of_constant(const tensor::Tensor& t) {
  if (!is_index_type(t.dtype())) return std::nullopt;
  const std::vector<int64_t> values = t.to_ints();
  if (values.empty()) return std::nullopt;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return bounded(0, *low, *high);
}

bool joins_last_dimension(const ir::OpDef& op, const NodeView& node) {
  if (op.schema.name != "concat") return false;
  const size_t rank = node.in[0].shape.rank();
  return ir::normal_axis(node.attrs.need_int("axis"), rank) + 1 == rank;
}

std::optional<EntryLookup> entry_lookup(const ir::OpDef& op, const NodeView& node) {
  if (node.in.size() != 2 || !is_index_type(node.in[1].dtype)) return std::nullopt;
  if (op.schema.name == "gather")
    return EntryLookup{ir::normal_axis(node.attrs.get_int("axis", 0), node.in[0].shape.rank())};
  if (op.schema.name == "gather_nd" && node.attrs.get_int("batch_dims", 0) == 0)
    return EntryLookup{.by_columns = true};
  return std::nullopt;
}

}  // namespace trireme::ops
