// Arrow files (also called Feather 2) as rows: one record batch in memory at a time, and only wanted columns.
#if TRIREME_ARROW
#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <arrow/ipc/reader.h>

#include <algorithm>

#include "base/error.h"
#include "data/readers/arrow_values.h"
#include "data/rows/arrow/arrow_batches.h"
#include "data/rows/arrow/arrow_columns.h"
#include "data/rows/arrow/arrow_io.h"
#include "data/rows/arrow/arrow_pieces.h"
#include "data/rows/byte_stream.h"
#include "data/rows/row_formats.h"

namespace trireme::data {
namespace {

using base::require;

constexpr int64_t kPoolBytes = int64_t{4} << 30;  // of the batches in hand, however large the file is

/// A place in the file, as spans store it: the number of a batch, and the number of a row in the batch.
constexpr int kRowBits = 40;
int64_t place_of(int64_t batch, int64_t row) { return batch << kRowBits | row; }
int64_t batch_of(int64_t place) { return place >> kRowBits; }
int64_t row_of(int64_t place) { return place & ((int64_t{1} << kRowBits) - 1); }

using Batches = std::shared_ptr<arrow::ipc::RecordBatchFileReader>;

struct Opened {
  std::shared_ptr<StoreTrouble> trouble = std::make_shared<StoreTrouble>();
  std::shared_ptr<arrow::MemoryPool> pool;
  std::shared_ptr<const StoreFile> file;
  int64_t most_row_bytes = 0;

  template <class T>
  T take(arrow::Result<T> result) const {
    trouble->check(result.status());
    return std::move(result).ValueUnsafe();
  }

  /// `columns`: numbers of top-level fields; empty for all.
  Batches reader(std::vector<int> columns) const {
    arrow::ipc::IpcReadOptions options = arrow::ipc::IpcReadOptions::Defaults();
    options.memory_pool = pool.get();
    options.use_threads = false;
    options.included_fields = std::move(columns);
    return take(arrow::ipc::RecordBatchFileReader::Open(make_arrow_input(file, trouble), options));
  }

  std::shared_ptr<arrow::RecordBatch> read(const Batches& reader, int64_t index) const {
    const auto batch = take(reader->ReadRecordBatch(static_cast<int>(index)));
    require(batch->num_rows() >= 0 && batch->num_rows() < int64_t{1} << kRowBits,
            "Arrow file is damaged: batch of ", batch->num_rows(), " rows");
    return batch;
  }
};

class ArrowStream : public RowStream {
 public:
  ArrowStream(const Opened& opened, const RowSpan& span, ColumnChoice choice, std::vector<int> columns)
      : opened_(opened),
        reader_(opened.reader(std::move(columns))),
        choice_(std::move(choice)),
        at_(span.first_row),
        end_(span.first_row + span.rows),
        next_batch_(batch_of(span.begin)),
        skip_(row_of(span.begin)) {}

  bool next(int64_t most, Rows& out) override {
    if (at_ >= end_ || most <= 0) return false;
    while (batch_ == nullptr || batch_->num_rows() == 0) read_batch();
    const ArrowPiece piece =
        first_piece(*batch_, std::min({most, end_ - at_, batch_->num_rows()}), opened_.most_row_bytes);
    out = piece.too_long > 0
              ? too_long_row(*batch_->schema(), choice_.fields, piece.too_long, opened_.most_row_bytes)
              : rows_of_batch(batch_->Slice(0, piece.rows), choice_.fields, opened_.pool);
    name_rows(out, at_);
    batch_ = batch_->Slice(piece.rows);
    at_ += piece.rows;
    return true;
  }

 private:
  void read_batch() {
    require(next_batch_ < reader_->num_record_batches(),
            "file has changed since it was cut: it ends before row ", at_);
    batch_ = opened_.read(reader_, next_batch_++);
    // The format has no checksums: damaged data must not lead outside the batch's memory.
    opened_.trouble->check(batch_->ValidateFull());
    require(skip_ <= batch_->num_rows(), "file has changed since it was cut: its batches have other lengths");
    batch_ = batch_->Slice(std::exchange(skip_, 0));
  }

  const Opened& opened_;
  Batches reader_;
  ColumnChoice choice_;
  int64_t at_, end_;
  int64_t next_batch_;
  int64_t skip_;  // rows at the start of the first batch that the span before covers
  std::shared_ptr<arrow::RecordBatch> batch_;
};

/// The bits per value of a type, large if they vary: used to choose the column with which rows are counted.
int width_of(const arrow::DataType& type) {
  return arrow::is_primitive(type.id()) ? type.bit_width() : 1 << 20;
}

class ArrowFile : public RowFile {
 public:
  explicit ArrowFile(RowSource source) {
    opened_.file = std::move(source.file);
    opened_.most_row_bytes = source.options.most_row_bytes;
    opened_.pool = pool_of_file(opened_.file->size(), kPoolBytes);
    const Batches reader = opened_.reader({});
    schema_ = reader->schema();
    require(schema_->num_fields() > 0, "Arrow file has no columns");
    fields_ = flat_fields(*schema_);
    check_widths(fields_, opened_.most_row_bytes);
  }

  std::string_view format() const override { return "arrow"; }
  const std::vector<Field>& fields() const override { return fields_; }
  uint64_t content_id() const override {
    // The footer's length precedes the magic at the end of the file.
    const int64_t size = opened_.file->size();
    uint32_t footer = 0;
    if (size >= 10) opened_.file->read(size - 10, std::as_writable_bytes(std::span(&footer, 1)));
    return content_id_of(*opened_.file, std::min<int64_t>(size, int64_t{footer} + 10));
  }

  /// The footer does not state the lengths of batches, so the narrowest column is read to count their rows.
  void cut(int64_t rows, const std::function<void(const RowSpan&)>& take) const override {
    require(rows > 0, "rows of a span must be positive: ", rows);
    int narrowest = 0;
    for (int i = 1; i < schema_->num_fields(); ++i) {
      if (width_of(*schema_->field(i)->type()) < width_of(*schema_->field(narrowest)->type())) narrowest = i;
    }
    const Batches reader = opened_.reader({narrowest});
    RowSpan span;
    const auto give = [&](int64_t place) {
      span.end = place;
      take(span);
      span = {.first_row = span.first_row + span.rows, .begin = place};
    };
    for (int b = 0; b < reader->num_record_batches(); ++b) {
      const int64_t in_batch = opened_.read(reader, b)->num_rows();
      check_row_count(span.first_row + span.rows + in_batch, opened_.file->size());
      for (int64_t at = 0; at < in_batch;) {
        const int64_t count = std::min(rows - span.rows, in_batch - at);
        span.rows += count;
        at += count;
        if (span.rows == rows) give(place_of(b, at));
      }
    }
    if (span.rows > 0) give(place_of(reader->num_record_batches(), 0));
  }

  std::unique_ptr<RowStream> open(const RowSpan& span,
                                  const std::vector<std::string>& columns) const override {
    check_span(span, INT64_MAX);
    require(span.begin >= 0, "span is outside of the file: begins at ", span.begin);
    ColumnChoice choice = choose_columns(fields_, columns);
    std::vector<int> roots;
    for (int i = 0; i < schema_->num_fields(); ++i) {
      const std::string& name = schema_->field(i)->name();
      const bool is_wanted = std::any_of(choice.fields.begin(), choice.fields.end(), [&](const Field& f) {
        return f.name == name || f.name.starts_with(name + ".");
      });
      if (is_wanted) roots.push_back(i);
    }
    return std::make_unique<ArrowStream>(opened_, span, std::move(choice), std::move(roots));
  }

 private:
  Opened opened_;
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<Field> fields_;
};

}  // namespace

std::unique_ptr<RowFile> open_arrow_rows(RowSource source) {
  return std::make_unique<ArrowFile>(std::move(source));
}

}  // namespace trireme::data
#endif
