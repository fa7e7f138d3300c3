// A run of rows by column: what files of rows are read into, what models take and give, and what is written.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/dataset/dataset.h"
#include "tensor/tensor.h"

namespace trireme::data {

/// Values of one column. Of tensors whose rows have one shape: `numbers` [rows, shape…]; of others: one of
/// `ragged` for each row. Of text and bytes: `strings`.
struct Column {
  Field field;
  tensor::Tensor numbers = {};
  std::vector<tensor::Tensor> ragged = {};
  std::vector<std::string> strings = {};
  /// By row; empty: no row lacks its value. What stands in the place of a missing value is zero or empty.
  std::vector<bool> is_missing = {};
  /// The library's own form of the same values, of a format that has one (an Arrow array): a writer of the
  /// same library takes it, so that a column which is only carried through keeps its type exactly.
  std::shared_ptr<const void> original = {};
  /// By row, of tensors; empty: none. Why a value that is there is no tensor of the field: it counts as
  /// missing, and only `original` has it. Whoever wants the tensor throws the error.
  std::vector<std::optional<base::Error>> errors = {};

  const base::Error* error_at(int64_t row) const;
  bool is_missing_at(int64_t row) const {
    return !is_missing.empty() && is_missing[static_cast<size_t>(row)];
  }
  /// The value of a row of tensors, without the dimension of rows. Shares the bytes.
  tensor::Tensor tensor_at(int64_t row) const;
};

/// Rows side by side. A row that could not be read has an error, and its values are missing.
struct Rows {
  int64_t count = 0;
  std::vector<Column> columns = {};
  std::vector<std::optional<base::Error>> errors = {};  ///< by row; empty: every row was read

  const Column* find(std::string_view name) const;
  const base::Error* error_at(int64_t row) const;
};

/// Rows [begin, begin + count). Tensors share their bytes; strings are copied.
Rows slice(const Rows& from, int64_t begin, int64_t count);

/// Rows of the same columns one after another; columns whose shapes differ become ragged, unread rows stay.
Rows join(std::vector<Rows> parts);

}  // namespace trireme::data
