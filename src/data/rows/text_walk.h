// Rows of text: lines, or rows of CSV, whose cells may hold line breaks.
#pragma once

#include <memory>
#include <optional>

#include "data/readers/csv_cells.h"
#include "data/rows/framed_file.h"

namespace trireme::data {

/// Blank rows are passed over. A frame's content is without its line break, and of lines without blanks
/// before it; one longer than `most_row_bytes` has an error. Sums what it passes.
class TextWalk : public RowWalk {
 public:
  /// `csv_delimiter`: of CSV; nothing: lines.
  TextWalk(std::unique_ptr<ByteStream> bytes, std::optional<char> csv_delimiter, int64_t most_row_bytes);

  bool next(RowFrame& frame, bool with_content) override;

 private:
  size_t find_end(std::string_view piece);
  bool pass_long_row(RowFrame& frame);
  void refuse_long(RowFrame& frame) const;
  void take(std::string_view bytes);

  std::optional<CsvRowScan> csv_;
  size_t most_row_bytes_;
};

}  // namespace trireme::data
