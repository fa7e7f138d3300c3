// The outputs of a piece's rows.
#include "batch/models/answer_rows.h"

#include <algorithm>
#include <cstring>

namespace trireme::batch {

using tensor::Tensor;

AnswerRows::AnswerRows(std::vector<data::Field> fields, int64_t rows)
    : is_set_(fields.size(), std::vector<bool>(static_cast<size_t>(rows), false)) {
  answer_.outputs.count = rows;
  for (data::Field& field : fields) {
    data::Column column{.field = std::move(field)};
    if (column.field.kind != data::FieldKind::tensor) column.strings.resize(static_cast<size_t>(rows));
    answer_.outputs.columns.push_back(std::move(column));
  }
}

void AnswerRows::set(int64_t row, std::vector<OutputValue> values) {
  base::check(values.size() == answer_.outputs.columns.size(), "a row of ", values.size(), " outputs");
  for (size_t c = 0; c < values.size(); ++c) {
    if (Tensor* numbers = std::get_if<Tensor>(&values[c])) {
      put(c, row, std::move(*numbers));
    } else {
      set_strings(c, row, std::move(std::get<std::string>(values[c])));
    }
  }
}

void AnswerRows::set_strings(size_t column, int64_t row, std::string value) {
  answer_.outputs.columns[column].strings[static_cast<size_t>(row)] = std::move(value);
  is_set_[column][static_cast<size_t>(row)] = true;
}

/// Rows of one shape lie together; the first of another shape makes each a tensor of its own.
void AnswerRows::put(size_t at, int64_t row, Tensor value) {
  data::Column& column = answer_.outputs.columns[at];
  is_set_[at][static_cast<size_t>(row)] = true;
  if (column.ragged.empty() && !column.numbers.defined()) {
    tensor::Dims dims = value.dims();
    dims.insert(dims.begin(), answer_.outputs.count);
    column.numbers = Tensor::zeros(value.dtype(), dims);
  }
  const tensor::Dims& dims = column.numbers.dims();
  const bool fits = column.ragged.empty() &&
                    std::equal(dims.begin() + 1, dims.end(), value.dims().begin(), value.dims().end());
  if (fits) {
    std::memcpy(column.numbers.mutable_raw() + row * value.bytes(), value.raw(),
                static_cast<size_t>(value.bytes()));
    return;
  }
  if (column.ragged.empty()) spread(column);
  column.ragged[static_cast<size_t>(row)] = std::move(value);
}

void AnswerRows::spread(data::Column& column) const {
  for (int64_t i = 0; i < answer_.outputs.count; ++i) column.ragged.push_back(column.tensor_at(i).clone());
  column.numbers = {};
}

void AnswerRows::fail(int64_t row, const base::Error& error) {
  if (answer_.errors.empty()) answer_.errors.resize(static_cast<size_t>(answer_.outputs.count));
  answer_.errors[static_cast<size_t>(row)] = error;
}

PieceAnswer AnswerRows::take() {
  for (size_t c = 0; c < is_set_.size(); ++c) {
    data::Column& column = answer_.outputs.columns[c];
    const bool is_tensor = column.field.kind == data::FieldKind::tensor;
    if (is_tensor && !column.numbers.defined() && column.ragged.empty()) {  // no row was answered
      column.ragged.assign(static_cast<size_t>(answer_.outputs.count),
                           Tensor::zeros(column.field.dtype, {0}));
    }
    if (std::find(is_set_[c].begin(), is_set_[c].end(), false) == is_set_[c].end()) continue;
    column.is_missing = std::move(is_set_[c]);
    column.is_missing.flip();
  }
  return std::move(answer_);
}

base::Error given_up_error() { return {base::ErrorCode::unavailable, "the answer was given up"}; }

PieceAnswer given_up_answer(std::vector<data::Field> fields, int64_t rows) {
  AnswerRows answers(std::move(fields), rows);
  for (int64_t row = 0; row < rows; ++row) answers.fail(row, given_up_error());
  return answers.take();
}

}  // namespace trireme::batch
