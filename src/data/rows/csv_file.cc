// CSV as rows.
#include <algorithm>

#include "base/error.h"
#include "data/readers/csv_cells.h"
#include "data/rows/text_walk.h"

namespace trireme::data {
namespace {

using tensor::DType;

class CsvDecoder : public RowDecoder {
 public:
  CsvDecoder(const std::vector<Field>& fields, ColumnChoice choice, char delimiter)
      : fields_(fields), choice_(std::move(choice)), delimiter_(delimiter) {}

  void decode(const RowFrame& frame, RowsBuilder& rows) override {
    csv_cells(frame.content, delimiter_, cells_);
    check_cell_count(cells_.size(), fields_.size());
    for (size_t c = 0; c < fields_.size(); ++c) {
      if (choice_.place_of[c] == kNoPlace) continue;
      ColumnBuilder& column = rows.column(choice_.place_of[c]);
      if (fields_[c].kind == FieldKind::text) {
        column.add(std::move(cells_[c]));
      } else if (cells_[c].empty()) {
        column.add_missing();
      } else if (fields_[c].dtype == DType::i64) {
        column.add_number(csv_number<int64_t>(fields_[c], cells_[c]));
      } else if (fields_[c].dtype == DType::u64) {
        column.add_number(csv_number<uint64_t>(fields_[c], cells_[c]));
      } else {
        column.add_number(csv_number<double>(fields_[c], cells_[c]));
      }
    }
  }

 private:
  const std::vector<Field>& fields_;
  ColumnChoice choice_;
  char delimiter_;
  std::vector<std::string> cells_;
};

class CsvFile : public FramedFile {
 public:
  explicit CsvFile(RowSource source) : FramedFile("csv", std::move(source)) {
    first_byte_ = text_begin();
    std::unique_ptr<RowWalk> walk = walk_from(first_byte_);
    RowFrame frame;
    if (!walk->next(frame, true)) return;  // neither columns nor rows
    if (frame.damage) throw *frame.damage;
    check_line_ends(frame.content);
    std::vector<std::string> names = csv_cells(frame.content, delimiter());
    if (this->source().options.csv_header) {
      first_byte_ = frame.end;
    } else {
      for (size_t c = 0; c < names.size(); ++c) names[c] = std::to_string(c);
      walk = walk_from(first_byte_);
    }
    learn(names, *walk);
  }

  std::unique_ptr<RowWalk> walk(std::unique_ptr<ByteStream> bytes) const override {
    return std::make_unique<TextWalk>(std::move(bytes), delimiter(), source().options.most_row_bytes);
  }
  std::unique_ptr<RowDecoder> decoder(ColumnChoice choice) const override {
    return std::make_unique<CsvDecoder>(fields_, std::move(choice), delimiter());
  }

 private:
  char delimiter() const { return source().options.csv_delimiter; }

  /// Learns the columns. A row that does not fit is reported when it is read, not here.
  void learn(const std::vector<std::string>& names, RowWalk& walk) {
    CsvFields fields(names, TextNumbers::exact);
    RowFrame frame;
    for (int64_t row = 0; row < kLearnedRows && walk.next(frame, true); ++row) {
      if (frame.damage) continue;
      try {
        fields.learn(csv_cells(frame.content, delimiter()));
      } catch (const base::Error&) {
        continue;
      }
    }
    fields_ = fields.fields();
  }
};

}  // namespace

std::unique_ptr<RowFile> open_csv_rows(RowSource source) {
  return std::make_unique<CsvFile>(std::move(source));
}

}  // namespace trireme::data
