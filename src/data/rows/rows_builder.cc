// Builds columns value by value.
#include "data/rows/rows_builder.h"

#include <cstring>

namespace trireme::data {

using base::require;
using tensor::Dims;
using tensor::Tensor;

namespace {

bool fits(const tensor::Shape& shape, const Dims& dims) {
  if (!shape.has_rank()) return true;
  if (shape.rank() != dims.size()) return false;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (shape[d].is_static() && shape[d].value() != dims[d]) return false;
  }
  return true;
}

/// The placeholder for a missing value where rows differ in shape: extents that vary are 0.
Tensor empty_value(const Field& field) {
  Dims dims(field.shape.has_rank() ? field.shape.rank() : 1, 0);
  for (size_t d = 0; field.shape.has_rank() && d < dims.size(); ++d) {
    if (field.shape[d].is_static()) dims[d] = field.shape[d].value();
  }
  return Tensor::zeros(field.dtype, dims);
}

}  // namespace

ColumnBuilder::ColumnBuilder(Field field) : field_(std::move(field)) {
  has_one_shape_ = field_.kind == FieldKind::tensor && field_.shape.is_static();
  if (has_one_shape_) row_bytes_ = static_cast<size_t>(tensor::bytes_of({field_.dtype, field_.shape}));
}

void ColumnBuilder::add(const Tensor& value) {
  require(value.dtype() == field_.dtype && fits(field_.shape, value.dims()), "value is not ",
          tensor::name_of(field_.dtype), field_.shape.to_string(), " as in the rows before: '", field_.name,
          "', ", tensor::name_of(value.dtype()), tensor::to_string(value.dims()));
  if (has_one_shape_) {
    numbers_.append(reinterpret_cast<const char*>(value.raw()), row_bytes_);
  } else {
    ragged_.push_back(value);
    other_bytes_ += static_cast<size_t>(value.bytes());
  }
  ++rows_;
}

void ColumnBuilder::add(std::string text) {
  other_bytes_ += text.size();
  strings_.push_back(std::move(text));
  ++rows_;
}

void ColumnBuilder::add_missing() {
  missing_.push_back(rows_);
  if (field_.kind != FieldKind::tensor) {
    strings_.emplace_back();
  } else if (has_one_shape_) {
    numbers_.append(row_bytes_, '\0');
  } else {
    ragged_.push_back(empty_value(field_));
  }
  ++rows_;
}

void ColumnBuilder::truncate(int64_t rows) {
  if (rows >= rows_) return;
  rows_ = rows;
  const auto left = static_cast<size_t>(rows);
  if (has_one_shape_) numbers_.resize(left * row_bytes_);
  if (ragged_.size() > left) ragged_.resize(left);
  if (strings_.size() > left) strings_.resize(left);
  while (!missing_.empty() && missing_.back() >= rows) missing_.pop_back();
}

Column ColumnBuilder::finish() {
  Column column{field_};
  if (has_one_shape_) {
    Dims dims = field_.shape.to_dims();
    dims.insert(dims.begin(), rows_);
    column.numbers = Tensor::empty(field_.dtype, dims);
    if (!numbers_.empty()) std::memcpy(column.numbers.mutable_raw(), numbers_.data(), numbers_.size());
  }
  column.ragged = std::move(ragged_);
  column.strings = std::move(strings_);
  if (!missing_.empty()) column.is_missing.resize(static_cast<size_t>(rows_));
  for (const int64_t row : missing_) column.is_missing[static_cast<size_t>(row)] = true;
  rows_ = 0;
  other_bytes_ = 0;
  numbers_.clear();
  ragged_.clear();
  strings_.clear();
  missing_.clear();
  return column;
}

RowsBuilder::RowsBuilder(const std::vector<Field>& fields) {
  for (const Field& field : fields) columns_.emplace_back(field);
}

size_t RowsBuilder::bytes() const {
  size_t bytes = 0;
  for (const ColumnBuilder& column : columns_) bytes += column.bytes();
  return bytes;
}

ColumnBuilder& RowsBuilder::column(size_t index) {
  ColumnBuilder& column = columns_[index];
  require(column.rows() == rows_, "row has two values of one column: '", column.field().name, "'");
  return column;
}

void RowsBuilder::end_row() {
  for (ColumnBuilder& column : columns_) {
    if (column.rows() == rows_) column.add_missing();
  }
  ++rows_;
}

void RowsBuilder::fail_row(base::Error error) {
  for (ColumnBuilder& column : columns_) column.truncate(rows_);
  errors_.emplace_back(rows_, std::move(error));
  end_row();
}

Rows RowsBuilder::finish() {
  Rows rows;
  rows.count = rows_;
  for (ColumnBuilder& column : columns_) rows.columns.push_back(column.finish());
  if (!errors_.empty()) rows.errors.resize(static_cast<size_t>(rows_));
  for (auto& [row, error] : errors_) rows.errors[static_cast<size_t>(row)] = std::move(error);
  errors_.clear();
  rows_ = 0;
  return rows;
}

}  // namespace trireme::data
