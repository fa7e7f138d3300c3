// The outputs of a piece's rows, put in their places as they come.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "batch/row_model.h"

namespace trireme::batch {

/// One output of one row, without the dimension of rows: numbers, or a text.
using OutputValue = std::variant<tensor::Tensor, std::string>;

/// One thread at a time.
class AnswerRows {
 public:
  AnswerRows(std::vector<data::Field> fields, int64_t rows);

  /// A value for each field, of its kind. A row is set once.
  void set(int64_t row, std::vector<OutputValue> values);
  void set_strings(size_t column, int64_t row, std::string value);
  void set_number(size_t column, int64_t row, tensor::Tensor value) { put(column, row, std::move(value)); }
  void fail(int64_t row, const base::Error& error);
  /// Of rows that failed the values are missing.
  PieceAnswer take();

 private:
  void put(size_t column, int64_t row, tensor::Tensor value);
  void spread(data::Column& column) const;

  PieceAnswer answer_;
  std::vector<std::vector<bool>> is_set_;  // by column and row
};

/// The error of rows for which nobody waits any more.
base::Error given_up_error();
/// The answer to a piece with `rows` rows of which none is computed because nobody waits for them.
PieceAnswer given_up_answer(std::vector<data::Field> fields, int64_t rows);

}  // namespace trireme::batch
