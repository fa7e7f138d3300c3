// Runs of rows: looks up columns, cuts and joins runs.
#include "data/rows/rows.h"

#include <algorithm>
#include <cstring>

#include "data/rows/original.h"

namespace trireme::data {
namespace {

using tensor::Dims;
using tensor::Tensor;

using Errors = std::vector<std::optional<base::Error>>;  // by row; empty: none

const base::Error* find_error(const Errors& errors, int64_t row) {
  if (errors.empty()) return nullptr;
  const std::optional<base::Error>& error = errors[static_cast<size_t>(row)];
  return error ? &*error : nullptr;
}

Errors slice_errors(const Errors& from, int64_t begin, int64_t count) {
  if (from.empty()) return {};
  Errors part(from.begin() + begin, from.begin() + begin + count);
  const bool any = std::any_of(part.begin(), part.end(), [](const auto& e) { return e.has_value(); });
  return any ? part : Errors{};
}

/// Appends those of a part behind the `before` rows of the parts before it.
void join_errors(Errors& all, Errors&& part, int64_t before) {
  if (part.empty()) return;
  all.resize(static_cast<size_t>(before));
  std::move(part.begin(), part.end(), std::back_inserter(all));
}

bool has_one_shape(const Column& column) { return column.numbers.defined(); }

Column slice_column(const Column& from, int64_t begin, int64_t count) {
  Column part{from.field};
  if (has_one_shape(from)) part.numbers = from.numbers.rows(begin, begin + count);
  const auto first = static_cast<ptrdiff_t>(begin), last = static_cast<ptrdiff_t>(begin + count);
  if (!from.ragged.empty()) part.ragged.assign(from.ragged.begin() + first, from.ragged.begin() + last);
  if (!from.strings.empty()) part.strings.assign(from.strings.begin() + first, from.strings.begin() + last);
  if (!from.is_missing.empty()) {
    part.is_missing.assign(from.is_missing.begin() + first, from.is_missing.begin() + last);
    if (std::find(part.is_missing.begin(), part.is_missing.end(), true) == part.is_missing.end())
      part.is_missing.clear();
  }
  part.original = slice_original(from.original, begin, count);
  part.errors = slice_errors(from.errors, begin, count);
  return part;
}

/// Extents of one row: those of `numbers` without the first.
Dims row_dims(const Tensor& numbers) { return {numbers.dims().begin() + 1, numbers.dims().end()}; }

/// Joins the bytes of rows of one shape from all parts; `count` rows in total.
Tensor join_numbers(const std::vector<Rows>& parts, size_t column, int64_t count) {
  const Tensor& first = parts[0].columns[column].numbers;
  Dims dims = first.dims();
  dims[0] = count;
  Tensor all = Tensor::empty(first.dtype(), dims);
  std::byte* to = all.mutable_raw();
  for (const Rows& part : parts) {
    const Tensor& numbers = part.columns[column].numbers;
    if (numbers.bytes() > 0) std::memcpy(to, numbers.raw(), static_cast<size_t>(numbers.bytes()));
    to += numbers.bytes();
  }
  return all;
}

/// The shape common to both; extents that differ become unknown.
tensor::Shape common_shape(const tensor::Shape& a, const tensor::Shape& b) {
  if (!a.has_rank() || !b.has_rank() || a.rank() != b.rank()) return tensor::Shape::unknown_rank();
  tensor::Shape both = a;
  for (size_t d = 0; d < a.rank(); ++d) {
    if (!(a[d] == b[d])) both[d] = tensor::Dim::unknown();
  }
  return both;
}

Column join_column(std::vector<Rows>& parts, size_t index, int64_t count) {
  Column all{parts[0].columns[index].field};
  bool one_shape = true, any_missing = false;
  std::vector<Original> originals;
  for (const Rows& part : parts) {
    const Column& column = part.columns[index];
    base::check(column.field.name == all.field.name && column.field.kind == all.field.kind &&
                    column.field.dtype == all.field.dtype,
                "rows of different columns are joined: '", all.field.name, "' and '", column.field.name, "'");
    all.field.shape = common_shape(all.field.shape, column.field.shape);
    one_shape = one_shape && has_one_shape(column) &&
                row_dims(column.numbers) == row_dims(parts[0].columns[index].numbers);
    any_missing = any_missing || !column.is_missing.empty();
    originals.push_back(column.original);
  }
  const bool is_tensor = all.field.kind == FieldKind::tensor;
  if (is_tensor && one_shape) all.numbers = join_numbers(parts, index, count);
  int64_t before = 0;  // rows of the parts before
  for (Rows& part : parts) {
    Column& column = part.columns[index];
    join_errors(all.errors, std::move(column.errors), before);
    before += part.count;
    for (int64_t i = 0; is_tensor && !one_shape && i < part.count; ++i)
      all.ragged.push_back(column.tensor_at(i));
    std::move(column.strings.begin(), column.strings.end(), std::back_inserter(all.strings));
    for (int64_t i = 0; any_missing && i < part.count; ++i) all.is_missing.push_back(column.is_missing_at(i));
  }
  if (!all.errors.empty()) all.errors.resize(static_cast<size_t>(count));
  all.original = join_originals(originals);
  return all;
}

}  // namespace

Tensor Column::tensor_at(int64_t row) const {
  if (!numbers.defined()) return ragged.at(static_cast<size_t>(row));
  return numbers.rows(row, row + 1).reshaped(row_dims(numbers));
}

const base::Error* Column::error_at(int64_t row) const { return find_error(errors, row); }

const Column* Rows::find(std::string_view name) const {
  const auto at =
      std::find_if(columns.begin(), columns.end(), [&](const Column& c) { return c.field.name == name; });
  return at == columns.end() ? nullptr : &*at;
}

const base::Error* Rows::error_at(int64_t row) const { return find_error(errors, row); }

Rows slice(const Rows& from, int64_t begin, int64_t count) {
  base::check(begin >= 0 && count >= 0 && begin <= from.count && count <= from.count - begin,
              "rows to take are outside: ", begin, " and ", count, " of ", from.count);
  Rows part;
  part.count = count;
  for (const Column& column : from.columns) part.columns.push_back(slice_column(column, begin, count));
  part.errors = slice_errors(from.errors, begin, count);
  return part;
}

Rows join(std::vector<Rows> parts) {
  if (parts.empty()) return {};
  if (parts.size() == 1) return std::move(parts[0]);
  Rows all;
  for (Rows& part : parts) {
    base::check(part.columns.size() == parts[0].columns.size(), "rows of different columns are joined");
    join_errors(all.errors, std::move(part.errors), all.count);
    all.count += part.count;
  }
  if (!all.errors.empty()) all.errors.resize(static_cast<size_t>(all.count));
  for (size_t c = 0; c < parts[0].columns.size(); ++c)
    all.columns.push_back(join_column(parts, c, all.count));
  return all;
}

}  // namespace trireme::data
