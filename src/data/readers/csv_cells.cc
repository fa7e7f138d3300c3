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

void check_cell_count(size_t cells, size_t columns) {
  require(cells == columns, "CSV row has ", cells, " cells, the first row ", columns);
}

CsvFields::CsvFields(const std::vector<std::string>& names) : is_known_(names.size()) {
  for (const std::string& name : names) fields_.push_back({name, FieldKind::tensor, DType::i64});
}

void CsvFields::learn(const std::vector<std::string>& cells) {
  check_cell_count(cells.size(), fields_.size());
  for (size_t c = 0; c < cells.size(); ++c) {
    Field& field = fields_[c];
    int64_t integer = 0;
    float real = 0;
    if (field.kind == FieldKind::text || cells[c].empty()) continue;
    is_known_[c] = true;
    if (field.dtype == DType::i64 && !parse_whole(cells[c], integer)) field.dtype = DType::f32;
    if (field.dtype == DType::f32 && !parse_whole(cells[c], real)) field = {field.name, FieldKind::text};
  }
}

std::vector<Field> CsvFields::fields() const {
  std::vector<Field> fields = fields_;
  for (size_t c = 0; c < fields.size(); ++c) {
    if (!is_known_[c]) fields[c] = {fields[c].name, FieldKind::text};
  }
  return fields;
}

int64_t csv_integer(const Field& field, std::string_view cell) {
  int64_t value = 0;
  require(parse_whole(cell, value), "CSV cell is not an integer as in the rows before: '", field.name, "', '",
          cell.substr(0, 80), "'");
  return value;
}

float csv_real(const Field& field, std::string_view cell) {
  float value = 0;
  require(parse_whole(cell, value), "CSV cell is not a number as in the rows before: '", field.name, "', '",
          cell.substr(0, 80), "'");
  return value;
}

}  // namespace trireme::data
