// Scans CSV text for rows, and splits rows into cells.
#include "data/readers/csv_cells.h"

#include <algorithm>

#include "base/error.h"
#include "data/readers/field_index.h"

namespace trireme::data {

using base::require;
using tensor::DType;

size_t CsvRowScan::find_end(std::string_view piece) {
  size_t at = 0;
  while (at < piece.size()) {
    const char c = piece[at];
    switch (place_) {
      case Place::quoted:
        at = piece.find('"', at);
        if (at == std::string_view::npos) return at;
        place_ = Place::quote;
        break;
      case Place::cell_start:
        place_ = c == '"' ? Place::quoted : c == delimiter_ ? Place::cell_start : Place::plain;
        break;
      case Place::quote:
        place_ = c == '"' ? Place::quoted : c == delimiter_ ? Place::cell_start : Place::plain;
        break;
      case Place::plain:
        while (at < piece.size() && piece[at] != delimiter_ && piece[at] != '\n') ++at;
        if (at == piece.size()) return std::string_view::npos;
        if (piece[at] == delimiter_) place_ = Place::cell_start;
        break;
    }
    // Inside quotes, only a quote can stand here. A line break ends the row even if it is the delimiter
    // itself.
    if (piece[at] == '\n') {
      place_ = Place::cell_start;
      return at + 1;
    }
    ++at;
  }
  return std::string_view::npos;
}

namespace {

/// Reads the cell at `at` and moves past it and its delimiter. Returns true at the end of the row.
bool next_cell(std::string_view row, size_t& at, char delimiter, std::string& cell) {
  cell.clear();
  if (at < row.size() && row[at] == '"') {
    for (++at;; ++at) {
      const size_t quote = row.find('"', at);
      require(quote != std::string_view::npos, "CSV quote is not closed");
      cell += row.substr(at, quote - at);
      at = quote + 1;
      if (at >= row.size() || row[at] != '"') break;
      cell += '"';
    }
    require(at == row.size() || row[at] == delimiter, "CSV cell goes on after its quote");
  } else {
    const size_t end = std::min(row.find(delimiter, at), row.size());
    cell = row.substr(at, end - at);
    at = end;
  }
  return at++ >= row.size();
}

}  // namespace

void csv_cells(std::string_view row, char delimiter, std::vector<std::string>& cells) {
  size_t count = 0;
  for (size_t at = 0, last = 0; last == 0; ++count) {
    require(count < kMostFields, "CSV row has more than ", kMostFields, " cells");
    if (count == cells.size()) cells.emplace_back();
    last = next_cell(row, at, delimiter, cells[count]) ? 1 : 0;
  }
  cells.resize(count);
}

std::vector<std::string> csv_cells(std::string_view row, char delimiter) {
  std::vector<std::string> cells;
  csv_cells(row, delimiter, cells);
  return cells;
}

void check_line_ends(std::string_view first_row) {
  while (first_row.ends_with('\r')) first_row.remove_suffix(1);
  bool is_quoted = false;
  for (const char c : first_row) {
    if (c == '"') is_quoted = !is_quoted;
    require(is_quoted || c != '\r',
            "CSV lines end with carriage returns alone, as old programs of the Macintosh ",
            "write them; save the file with line feeds (tr '\\r' '\\n')");
  }
}

void check_cell_count(size_t cells, size_t columns) {
  require(cells == columns, "CSV row has ", cells, " cells, the first row ", columns);
}

namespace {

bool is_number(DType dtype, std::string_view cell) {
  int64_t integer = 0;
  uint64_t past = 0;
  float narrow = 0;
  double real = 0;
  switch (dtype) {
    case DType::i64: return parse_whole(cell, integer);
    case DType::u64: return parse_whole(cell, past);
    case DType::f32: return parse_whole(cell, narrow);
    default: return parse_whole(cell, real);
  }
}

}  // namespace

CsvFields::CsvFields(const std::vector<std::string>& names, TextNumbers numbers)
    : numbers_(numbers), is_known_(names.size()), has_negative_(names.size()), has_long_(names.size()) {
  for (const std::string& name : names) fields_.push_back({name, FieldKind::tensor, DType::i64});
}

void CsvFields::learn(const std::vector<std::string>& cells) {
  check_cell_count(cells.size(), fields_.size());
  for (size_t c = 0; c < cells.size(); ++c) {
    if (fields_[c].kind == FieldKind::text || cells[c].empty()) continue;
    is_known_[c] = true;
    const bool is_exact_whole = numbers_ == TextNumbers::exact && is_whole_number(cells[c]);
    if (is_exact_whole && !is_kept_by_double(cells[c])) has_long_[c] = true;
    if (!is_number(fields_[c].dtype, cells[c])) widen(c, cells[c]);
    const bool rounds = fields_[c].dtype == DType::f64 && has_long_[c];
    if (rounds || (is_exact_whole && has_leading_zero(cells[c])))
      fields_[c] = {fields_[c].name, FieldKind::text};
    if (cells[c][0] == '-') has_negative_[c] = true;
  }
}

/// Gives a column the next type that holds a cell which its type does not hold.
void CsvFields::widen(size_t column, const std::string& cell) {
  Field& field = fields_[column];
  const bool is_exact = numbers_ == TextNumbers::exact;
  const DType real = is_exact ? DType::f64 : DType::f32;
  const bool may_be_past = is_exact && field.dtype == DType::i64 && !has_negative_[column];
  if (may_be_past && is_number(DType::u64, cell)) {
    field.dtype = DType::u64;
  } else if (!(is_exact && is_whole_number(cell)) && is_number(real, cell)) {
    field.dtype = real;
  } else {
    field = {field.name, FieldKind::text};
  }
}

std::vector<Field> CsvFields::fields() const {
  std::vector<Field> fields = fields_;
  for (size_t c = 0; c < fields.size(); ++c) {
    if (!is_known_[c]) fields[c] = {fields[c].name, FieldKind::text};
  }
  return fields;
}

void refuse_cell(const Field& field, std::string_view cell) {
  const bool is_integer = tensor::is_integer(field.dtype);
  base::fail_invalid("CSV cell is not ", is_integer ? "an integer" : "a number", " as in the rows before: '",
                     field.name, "', '", cell.substr(0, 80), "'");
}

}  // namespace trireme::data
