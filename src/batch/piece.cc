// Rows of a piece: selected, asked for again, and put together in their order.
#include "batch/piece.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace trireme::batch {
namespace {

/// Columns `names` of rows, in that order.
data::Rows columns_of(const data::Rows& rows, const std::vector<std::string>& names) {
  data::Rows out;
  out.count = rows.count;
  for (const std::string& name : names) {
    const data::Column* column = rows.find(name);
    base::require(column != nullptr, "the input has no column '", name, "'");
    out.columns.push_back(*column);
  }
  return out;
}

/// A number of the row that is NaN or infinite; nothing: all of them are finite.
std::optional<double> non_finite_in(const data::Column& column, int64_t row) {
  const bool has_reals = column.field.kind == data::FieldKind::tensor && tensor::is_float(column.field.dtype);
  if (!has_reals || column.is_missing_at(row)) return std::nullopt;
  for (const double value : column.tensor_at(row).to_doubles()) {
    if (!std::isfinite(value)) return value;
  }
  return std::nullopt;
}

}  // namespace

data::Rows select(const data::Rows& from, const std::vector<int64_t>& at) {
  if (static_cast<int64_t>(at.size()) == from.count) return from;
  std::vector<data::Rows> runs;
  for (size_t i = 0; i < at.size();) {
    size_t end = i + 1;
    while (end < at.size() && at[end] == at[end - 1] + 1) ++end;
    runs.push_back(data::slice(from, at[i], static_cast<int64_t>(end - i)));
    i = end;
  }
  if (runs.empty()) return data::slice(from, 0, 0);
  return runs.size() == 1 ? std::move(runs[0]) : data::join(std::move(runs));
}

bool may_pass(const base::Error& error) {
  return error.code() == base::ErrorCode::unavailable || error.code() == base::ErrorCode::exhausted ||
         error.code() == base::ErrorCode::internal;
}

int64_t bytes_of(const data::Rows& rows) {
  int64_t sum = 0;
  for (const data::Column& c : rows.columns) {
    if (c.numbers.defined()) sum += c.numbers.bytes();
    for (const tensor::Tensor& t : c.ragged) sum += t.bytes();
    for (const std::string& s : c.strings) sum += static_cast<int64_t>(sizeof s + s.size());
  }
  return sum;
}

Piece::Piece(data::Rows read, std::vector<std::string> keep, int64_t first_row)
    : rows_(read.count), first_row_(first_row), places_(static_cast<size_t>(read.count)) {
  kept_ = columns_of(read, keep);
  std::vector<int64_t> good;
  for (int64_t row = 0; row < rows_; ++row) {
    if (const base::Error* error = read.error_at(row)) {
      failures_.push_back({.row = row, .error = *error});
    } else {
      good.push_back(row);
    }
  }
  read_ = std::make_shared<const data::Rows>(std::move(read));
  ask(std::move(good));
}

void Piece::ask(std::vector<int64_t> rows) {
  asked_ = std::move(rows);
  if (asked_.empty()) return finish();
  question_ = static_cast<int64_t>(asked_.size()) == rows_
                  ? read_
                  : std::make_shared<const data::Rows>(select(*read_, asked_));
}

void Piece::answer(PieceAnswer&& answer, bool may_ask_again) {
  base::check(question_ != nullptr, "a piece was answered twice");
  base::check(answer.outputs.count == question_->count, "the model answered ", answer.outputs.count, " of ",
              question_->count, " rows");
  std::vector<int64_t> again;
  for (size_t i = 0; i < asked_.size(); ++i) {
    const bool failed = i < answer.errors.size() && answer.errors[i].has_value();
    if (!failed) {
      places_[static_cast<size_t>(asked_[i])] = Place{answers_.size(), static_cast<int64_t>(i)};
    } else if (may_ask_again && may_pass(*answer.errors[i])) {
      again.push_back(asked_[i]);
    } else {
      failures_.push_back({.row = asked_[i], .error = *answer.errors[i]});
    }
  }
  answers_.push_back(std::move(answer.outputs));
  ask(std::move(again));
}

void Piece::finish() {
  question_.reset();
  read_.reset();
  sort_failures();
  bytes_ = bytes_of(kept_);
  for (const data::Rows& rows : answers_) bytes_ += bytes_of(rows);
}

void Piece::sort_failures() {
  std::sort(failures_.begin(), failures_.end(),
            [](const Failure& a, const Failure& b) { return a.row < b.row; });
}

void Piece::refuse_non_finite(const std::vector<data::Field>& outputs) {
  base::check(question_ == nullptr, "a piece has rows without an answer");
  for (int64_t row = 0; row < rows_; ++row) {
    std::optional<Place>& place = places_[static_cast<size_t>(row)];
    if (!place) continue;
    const std::vector<data::Column>& columns = answers_[place->answer].columns;
    for (size_t c = 0; c < columns.size() && place; ++c) {
      const std::optional<double> value = non_finite_in(columns[c], place->row);
      if (!value) continue;
      const std::string why = base::concat("the output '", outputs.at(c).name, "' holds ", *value,
                                           ", and JSON has no such number; other formats have");
      failures_.push_back({.row = row, .error = base::Error(base::ErrorCode::unsupported, why)});
      place.reset();
    }
  }
  sort_failures();
}

data::Rows Piece::result(const std::vector<data::Field>& outputs) const {
  base::check(question_ == nullptr, "a piece has rows without an answer");
  std::vector<int64_t> good;
  std::vector<data::Rows> runs;  // of answers, in the order of the piece
  for (int64_t row = 0; row < rows_; ++row) {
    if (places_[static_cast<size_t>(row)]) good.push_back(row);
  }
  for (size_t i = 0; i < good.size();) {
    const Place first = *places_[static_cast<size_t>(good[i])];
    size_t end = i + 1;
    while (end < good.size()) {
      const Place next = *places_[static_cast<size_t>(good[end])];
      if (next.answer != first.answer || next.row != first.row + static_cast<int64_t>(end - i)) break;
      ++end;
    }
    const data::Rows& from = answers_[first.answer];
    const auto count = static_cast<int64_t>(end - i);
    runs.push_back(count == from.count ? from : data::slice(from, first.row, count));
    i = end;
  }
  data::Rows out = select(kept_, good);
  out.errors.clear();
  if (runs.empty()) return out;
  data::Rows answered = runs.size() == 1 ? std::move(runs[0]) : data::join(std::move(runs));
  base::check(answered.columns.size() == outputs.size(), "the model gave ", answered.columns.size(),
              " outputs, and had said ", outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    answered.columns[i].field.name = outputs[i].name;
    out.columns.push_back(std::move(answered.columns[i]));
  }
  return out;
}

}  // namespace trireme::batch
