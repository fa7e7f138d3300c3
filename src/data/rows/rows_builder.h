// Rows put together value by value: what readers of text, records and members fill.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/rows/rows.h"

namespace trireme::data {

/// One column while it grows.
class ColumnBuilder {
 public:
  explicit ColumnBuilder(Field field);

  const Field& field() const { return field_; }
  int64_t rows() const { return rows_; }
  /// What the values take.
  size_t bytes() const { return numbers_.size() + other_bytes_; }
  /// Throws invalid_argument where type or shape is not the field's.
  void add(const tensor::Tensor& value);
  /// A value of a field of scalars of this type.
  template <class T>
  void add_number(T value) {
    numbers_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    ++rows_;
  }
  void add(std::string text);
  void add_missing();
  /// Forgets all values behind the first `rows`.
  void truncate(int64_t rows);
  /// Everything that was added; the builder is empty then.
  Column finish();

 private:
  Field field_;
  bool has_one_shape_;
  size_t row_bytes_ = 0;  // of one shape
  int64_t rows_ = 0;
  size_t other_bytes_ = 0;  // of texts and ragged tensors
  std::string numbers_;
  std::vector<tensor::Tensor> ragged_;
  std::vector<std::string> strings_;
  std::vector<int64_t> missing_;  // in order
};

/// Rows while they grow: values of a row come in any order of the columns, what does not come is missing.
class RowsBuilder {
 public:
  explicit RowsBuilder(const std::vector<Field>& fields);

  int64_t rows() const { return rows_; }
  size_t bytes() const;
  /// The column to add the present row's value to. Throws invalid_argument if it has one already.
  ColumnBuilder& column(size_t index);
  void end_row();
  /// The present row has an error instead of its values.
  void fail_row(base::Error error);
  Rows finish();

 private:
  int64_t rows_ = 0;
  std::vector<ColumnBuilder> columns_;
  std::vector<std::pair<int64_t, base::Error>> errors_;
};

}  // namespace trireme::data
