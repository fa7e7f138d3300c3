// Rows and cells of CSV (RFC 4180).
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset/dataset.h"
#include "data/readers/text_numbers.h"

namespace trireme::data {

/// Finds where rows end: at line breaks outside of quotes. The text may come in pieces.
class CsvRowScan {
 public:
  explicit CsvRowScan(char delimiter) : delimiter_(delimiter) {}

  /// Past the row's line break in `piece`, which goes on where the last one ended; npos: the row goes on.
  size_t find_end(std::string_view piece);
  /// The text so far ends inside of a quote.
  bool is_quoted() const { return place_ == Place::quoted; }

 private:
  enum class Place : uint8_t { cell_start, plain, quoted, quote };  // quote: one that ends the cell, or two
  char delimiter_;
  Place place_ = Place::cell_start;
};

/// The cells of a row without its line break. Throws invalid_argument for quotes that do not pair.
std::vector<std::string> csv_cells(std::string_view row, char delimiter);
/// The same into `cells`, whose memory is used again.
void csv_cells(std::string_view row, char delimiter, std::vector<std::string>& cells);

/// All of `text` as a number.
template <class T>
bool parse_whole(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end;
}

/// What the columns of a CSV file hold, learned from rows: integers, else numbers, else text. Empty cells say
/// nothing, a column of them alone is text. With exact numbers, columns are text that have whole ones which
/// the column's type would round, or leading zeros.
class CsvFields {
 public:
  CsvFields(const std::vector<std::string>& names, TextNumbers numbers);
  /// Throws invalid_argument for a row of another number of cells.
  void learn(const std::vector<std::string>& cells);
  std::vector<Field> fields() const;

 private:
  void widen(size_t column, const std::string& cell);

  TextNumbers numbers_;
  std::vector<Field> fields_;
  std::vector<bool> is_known_, has_negative_;
  std::vector<bool> has_long_;  // a whole number that no double keeps
};

/// Throws invalid_argument where the first row of a text has a carriage return outside of quotes: such a text
/// ends its lines so, and would be one row.
void check_line_ends(std::string_view first_row);

/// Throws invalid_argument where a row has another number of cells than columns.
void check_cell_count(size_t cells, size_t columns);

/// Throws invalid_argument: the cell is not of the field's type.
[[noreturn]] void refuse_cell(const Field& field, std::string_view cell);

/// A cell of a field whose element type is T. Throws invalid_argument for a cell of another type.
template <class T>
T csv_number(const Field& field, std::string_view cell) {
  T value{};
  if (!parse_whole(cell, value)) refuse_cell(field, cell);
  return value;
}

}  // namespace trireme::data
