// The text that a row gives a model.
#include "batch/models/prompt_text.h"

#include <algorithm>

#include "base/text/json.h"

namespace trireme::batch {
namespace {

std::string number_text(const tensor::Tensor& value, const std::string& column) {
  base::require(value.elements() == 1, "column '", column, "' holds tensors of ", value.elements(),
                " numbers, where a text is wanted");
  if (value.dtype() == tensor::DType::boolean) return value.data<bool>()[0] ? "true" : "false";
  const bool is_float = value.dtype() == tensor::DType::f32 || value.dtype() == tensor::DType::f64 ||
                        value.dtype() == tensor::DType::f16 || value.dtype() == tensor::DType::bf16;
  if (value.dtype() == tensor::DType::u64) return std::to_string(value.data<uint64_t>()[0]);
  if (!is_float) return std::to_string(value.to_ints()[0]);
  return base::Json(value.to_doubles()[0]).dump({.nan_and_infinity = true});
}

std::string value_text(const data::Rows& rows, const std::string& name, int64_t row) {
  const data::Column* column = rows.find(name);
  base::require(column != nullptr, "the input has no column '", name, "'");
  if (const base::Error* error = column->error_at(row)) throw error->with("column '" + name + "'");
  base::require(!column->is_missing_at(row), "column '", name, "': the row has no value");
  if (column->field.kind == data::FieldKind::text) return column->strings[static_cast<size_t>(row)];
  base::require(column->field.kind == data::FieldKind::tensor, "column '", name,
                "' holds bytes, where a text is wanted");
  return number_text(column->tensor_at(row), name);
}

}  // namespace

PromptText::PromptText(std::string_view pattern, const std::string& column) {
  if (pattern.empty()) {
    parts_.push_back({.text = {}, .column = column});
    columns_.push_back(column);
    return;
  }
  Part part;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '{' && c != '}') {
      part.text += c;
      continue;
    }
    if (i + 1 < pattern.size() && pattern[i + 1] == c) {
      part.text += c;
      ++i;
      continue;
    }
    const size_t end = pattern.find('}', i);
    base::require(c == '{' && end != std::string_view::npos && end > i + 1, "prompt: '", c, "' at character ",
                  i, " belongs to no {column}; braces themselves are written twice");
    part.column = pattern.substr(i + 1, end - i - 1);
    if (std::find(columns_.begin(), columns_.end(), part.column) == columns_.end())
      columns_.push_back(part.column);
    parts_.push_back(std::move(part));
    part = {};
    i = end;
  }
  if (!part.text.empty()) parts_.push_back(std::move(part));
}

std::string PromptText::of(const data::Rows& rows, int64_t row) const {
  std::string text;
  for (const Part& part : parts_) {
    text += part.text;
    if (!part.column.empty()) text += value_text(rows, part.column, row);
  }
  return text;
}

}  // namespace trireme::batch
