// Parquet files as rows: decodes row groups in pieces, and only the wanted columns.
#if TRIREME_ARROW
#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/error.h"
#include "data/readers/arrow_values.h"
#include "data/rows/arrow/arrow_batches.h"
#include "data/rows/arrow/arrow_columns.h"
#include "data/rows/arrow/arrow_io.h"
#include "data/rows/arrow/arrow_pieces.h"
#include "data/rows/arrow/parquet_footer.h"
#include "data/rows/byte_stream.h"
#include "data/rows/parked.h"
#include "data/rows/row_formats.h"

namespace trireme::data {
namespace {

using base::require;

constexpr int64_t kMostBatchRows = 8192;
constexpr int64_t kBufferBytes = int64_t{32} << 20;  // for all columns together
constexpr int64_t kPoolBytes = int64_t{2} << 30;     // of the pages in hand, however large the file is

/// State shared by all readers of the file.
struct Opened {
  std::shared_ptr<StoreTrouble> trouble = std::make_shared<StoreTrouble>();
  std::shared_ptr<arrow::MemoryPool> pool;
  std::shared_ptr<const StoreFile> file;
  int64_t most_row_bytes = 0;
  std::unique_ptr<const ParquetFooter> footer;
  std::shared_ptr<parquet::FileMetaData> metadata;  // without row groups

  /// The metadata with the row groups [first, last) alone.
  std::shared_ptr<parquet::FileMetaData> metadata_of(size_t first, size_t last) const {
    const std::string bytes = footer->with_groups(first, last);
    return parquet::FileMetaData::Make(bytes.data(), static_cast<int64_t>(bytes.size()),
                                       parquet::ReaderProperties(pool.get()));
  }

  template <class T>
  T take(arrow::Result<T> result) const {
    trouble->check(result.status());
    return std::move(result).ValueUnsafe();
  }

  std::unique_ptr<parquet::arrow::FileReader> reader(std::shared_ptr<parquet::FileMetaData> groups,
                                                     int64_t batch_rows, int64_t columns) const {
    parquet::ReaderProperties properties(pool.get());
    properties.enable_buffered_stream();
    properties.set_buffer_size(
        std::clamp<int64_t>(kBufferBytes / columns, int64_t{16} << 10, file->block_bytes()));
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties(false);
    arrow_properties.set_pre_buffer(false);  // it would hold whole row groups
    arrow_properties.set_batch_size(batch_rows);
    auto raw =
        parquet::ParquetFileReader::Open(make_arrow_input(file, trouble), properties, std::move(groups));
    return take(parquet::arrow::FileReader::Make(pool.get(), std::move(raw), arrow_properties));
  }
};

/// Calls the library, and reports the exceptions it throws as damage of the file.
template <class Body>
auto guarded(const StoreTrouble& trouble, const Body& body) {
  try {
    return body();
  } catch (const parquet::ParquetException& e) {
    trouble.check(arrow::Status::Invalid("Parquet file is damaged: ", e.what()));
    throw;
  }
}

/// The metadata at the end of a file. Throws what the library says of a file that has none, and unsupported
/// for one that is encrypted.
std::string read_footer(const Opened& opened) {
  constexpr size_t kTailBytes = size_t{64} << 10, kEndBytes = 8;  // the length of the metadata and a name
  const StoreFile& file = *opened.file;
  const auto size = static_cast<size_t>(file.size());
  const auto read = [&](size_t behind) {
    std::string bytes(behind, '\0');
    file.read(static_cast<int64_t>(size - behind), std::as_writable_bytes(std::span(bytes)));
    return bytes;
  };
  std::string tail = read(std::min(size, kTailBytes));
  uint32_t bytes = 0;
  if (tail.size() > kEndBytes) std::memcpy(&bytes, tail.data() + tail.size() - kEndBytes, sizeof bytes);
  if (!tail.ends_with("PAR1") || bytes + kEndBytes > size) {
    const parquet::ReaderProperties properties(opened.pool.get());
    parquet::ParquetFileReader::Open(make_arrow_input(opened.file, opened.trouble), properties);
    base::fail_unsupported("a Parquet file whose footer does not end with PAR1");
  }
  if (bytes + kEndBytes > tail.size()) tail = read(bytes + kEndBytes);
  return tail.substr(tail.size() - kEndBytes - bytes, bytes);
}

/// Whether values below a list or a struct are coded by dictionaries: the library joins those of two row
/// groups in no batch.
bool has_nested_dictionary(const arrow::DataType& type, bool is_nested = false) {
  if (type.id() == arrow::Type::DICTIONARY) return is_nested;
  return std::any_of(type.fields().begin(), type.fields().end(),
                     [](const auto& field) { return has_nested_dictionary(*field->type(), true); });
}

/// Batches of some row groups, from some row on.
struct Cursor {
  std::vector<Field> fields = {};
  std::vector<int> leaves = {}, later = {};  // columns, and row groups of `reader` that `batches` has not
  size_t first_group = 0, last_group = 0;
  int64_t batch_rows = 0;                                   // 0: the file chooses
  std::unique_ptr<parquet::arrow::FileReader> reader = {};  // must outlive `batches`
  std::unique_ptr<arrow::RecordBatchReader> batches = {};
  std::shared_ptr<arrow::RecordBatch> batch = {};  // the unread rest of a batch; null if there is none
  int64_t at = 0;                                  // the row at which the rest begins
};

/// What a stream asks of its file.
struct CursorMaker {
  std::function<void(Cursor&)> open;  // puts it to the beginning of its row groups
  std::function<void(Cursor)> park;   // null if the span ends with its row groups
};

class ParquetStream : public RowStream {
 public:
  ParquetStream(const Opened& opened, const RowSpan& span, ColumnChoice choice, Cursor cursor,
                CursorMaker cursors)
      : opened_(opened),
        end_(span.first_row + span.rows),
        first_(span.first_row),
        choice_(std::move(choice)),
        cursor_(std::move(cursor)),
        cursors_(std::move(cursors)) {}

  bool next(int64_t most, Rows& out) override {
    return guarded(*opened_.trouble, [&] { return next_rows(most, out); });
  }

 private:
  bool next_rows(int64_t most, Rows& out) {
    if (std::max(first_, cursor_.at) >= end_ || most <= 0) return false;
    int64_t here = rows_here();
    for (; cursor_.at < first_; here = rows_here()) pass(std::min(first_ - cursor_.at, here));
    const ArrowPiece piece =
        first_piece(*cursor_.batch, std::min({most, end_ - cursor_.at, here}), opened_.most_row_bytes);
    out = piece.too_long > 0
              ? too_long_row(*cursor_.batch->schema(), choice_.fields, piece.too_long, opened_.most_row_bytes)
              : rows_of_batch(cursor_.batch->Slice(0, piece.rows), choice_.fields, opened_.pool);
    name_rows(out, cursor_.at);
    pass(piece.rows);
    if (cursor_.at == end_ && cursors_.park) cursors_.park(std::move(cursor_));
    return true;
  }

  /// The rows left in the current batch; reads the next batch if there are none. Never 0.
  int64_t rows_here() {
    while (cursor_.batch == nullptr || cursor_.batch->num_rows() == 0) {
      read_batch();
      require(cursor_.batch != nullptr, "Parquet file is damaged: its columns end before row ", cursor_.at);
    }
    return cursor_.batch->num_rows();
  }
  /// A text that a dictionary repeats makes a batch far larger than the file says: then the row groups are
  /// read again from their beginning, in smaller batches, and the cursor stands there.
  void read_batch() {
    auto batch = cursor_.batches->Next();
    if (batch.status().IsOutOfMemory() && cursor_.batch_rows > 1) {
      first_ = std::max(first_, cursor_.at);
      cursor_.batch_rows = std::max<int64_t>(1, cursor_.batch_rows / 16);
      cursors_.open(cursor_);
      batch = cursor_.batches->Next();
    }
    cursor_.batch = opened_.take(std::move(batch));
    while (cursor_.batch == nullptr && !cursor_.later.empty()) {
      const int group = cursor_.later.front();
      cursor_.later.erase(cursor_.later.begin());
      cursor_.batches = opened_.take(cursor_.reader->GetRecordBatchReader({group}, cursor_.leaves));
      cursor_.batch = opened_.take(cursor_.batches->Next());
    }
  }
  void pass(int64_t rows) {
    cursor_.batch = cursor_.batch->Slice(rows);
    cursor_.at += rows;
  }

  const Opened& opened_;
  int64_t end_, first_;  // rows before `first_` are passed
  ColumnChoice choice_;
  Cursor cursor_;
  CursorMaker cursors_;
};

class ParquetFile : public RowFile {
 public:
  explicit ParquetFile(RowSource source) {
    opened_.file = std::move(source.file);
    opened_.most_row_bytes = source.options.most_row_bytes;
    opened_.pool = pool_of_file(opened_.file->size(), kPoolBytes);
    guarded(*opened_.trouble, [&] {
      opened_.footer = std::make_unique<const ParquetFooter>(read_footer(opened_));
      opened_.metadata = opened_.metadata_of(0, 0);
      std::shared_ptr<arrow::Schema> schema;
      opened_.trouble->check(parquet::arrow::FromParquetSchema(
          opened_.metadata->schema(), parquet::default_arrow_reader_properties(),
          opened_.metadata->key_value_metadata(), &schema));
      fields_ = flat_fields(*schema);
      for (const auto& field : schema->fields())
        reads_by_group_ = reads_by_group_ || has_nested_dictionary(*field->type());
      for (const ParquetFooter::Group& group : opened_.footer->groups()) {
        require(group.rows >= 0 && group.rows <= INT64_MAX - group_begins_.back(),
                "Parquet file is damaged: row group ", group_begins_.size() - 1, " has ", group.rows,
                " rows");
        group_begins_.push_back(group_begins_.back() + group.rows);
      }
      check_row_count(group_begins_.back(), opened_.file->size());
      check_widths(fields_, opened_.most_row_bytes);
    });
  }

  std::string_view format() const override { return "parquet"; }
  const std::vector<Field>& fields() const override { return fields_; }
  uint64_t content_id() const override {
    return content_id_of(*opened_.file, static_cast<int64_t>(opened_.footer->size()) + 8);
  }

  /// Joins whole row groups while they are small, and cuts a large one into parts.
  void cut(int64_t rows, const std::function<void(const RowSpan&)>& take) const override {
    require(rows > 0, "rows of a span must be positive: ", rows);
    const size_t groups = group_begins_.size() - 1;
    for (size_t g = 0; g < groups;) {
      const int64_t begin = group_begins_[g], in_group = group_begins_[g + 1] - begin;
      if (in_group / 2 >= rows && in_group > rows) {
        for (int64_t at = 0; at < in_group; at += rows)
          take(span_of(begin + at, std::min(rows, in_group - at), g, g + 1));
        ++g;
        continue;
      }
      size_t last = g + 1;
      while (last < groups && group_begins_[last] - begin < rows &&
             (group_begins_[last + 1] - begin) / 2 <= rows - 1)
        ++last;
      if (group_begins_[last] > begin) take(span_of(begin, group_begins_[last] - begin, g, last));
      g = last;
    }
  }

  std::unique_ptr<RowStream> open(const RowSpan& span,
                                  const std::vector<std::string>& columns) const override {
    check_span(span, group_begins_.back());
    ColumnChoice choice = choose_columns(fields_, columns);
    return guarded(*opened_.trouble, [&] { return open_chosen(span, std::move(choice)); });
  }

 private:
  static RowSpan span_of(int64_t first, int64_t rows, size_t begin, size_t end) {
    return {.first_row = first,
            .rows = rows,
            .begin = static_cast<int64_t>(begin),
            .end = static_cast<int64_t>(end)};
  }

  /// The row group that holds a row.
  size_t group_of(int64_t row) const {
    const auto at = std::upper_bound(group_begins_.begin(), group_begins_.end(), row);
    return static_cast<size_t>(at - group_begins_.begin()) - 1;
  }

  std::unique_ptr<RowStream> open_chosen(const RowSpan& span, ColumnChoice choice) const {
    if (span.rows == 0)
      return std::make_unique<ParquetStream>(opened_, span, std::move(choice), Cursor{.at = span.first_row},
                                             CursorMaker{});
    const size_t first = group_of(span.first_row), last = group_of(span.first_row + span.rows - 1);
    const bool ends_inside = span.first_row + span.rows < group_begins_[last + 1];
    std::string kind;  // a stream of the same columns up to the same group may reuse a cursor
    for (const Field& field : choice.fields) kind += field.name + '\n';
    kind += std::to_string(last);
    std::optional<Cursor> cursor = parked_->take(kind, group_begins_[first], span.first_row);
    if (!cursor) {
      cursor = Cursor{.fields = choice.fields, .first_group = first, .last_group = last};
      open_cursor(*cursor);
    }
    CursorMaker cursors{.open = [this](Cursor& again) { open_cursor(again); }};
    if (ends_inside) {
      cursors.park = [parked = parked_, kind](Cursor left) {
        const int64_t at = left.at;
        parked->put(kind, at, std::move(left));
      };
    }
    return std::make_unique<ParquetStream>(opened_, span, std::move(choice), std::move(*cursor),
                                           std::move(cursors));
  }

  /// Puts it to the first row of its row groups. Chooses the rows of a batch unless they are set.
  void open_cursor(Cursor& cursor) const {
    cursor.batch = nullptr;
    cursor.batches = nullptr;
    cursor.reader = nullptr;
    const std::shared_ptr<parquet::FileMetaData> metadata =
        opened_.metadata_of(cursor.first_group, cursor.last_group + 1);
    std::vector<int> groups;  // of that metadata
    for (size_t g = cursor.first_group; g <= cursor.last_group; ++g)
      groups.push_back(static_cast<int>(g - cursor.first_group));
    const std::vector<int>& leaves = cursor.leaves = leaves_of(cursor.fields);
    cursor.later.clear();
    if (reads_by_group_) {
      cursor.later.assign(groups.begin() + 1, groups.end());
      groups.resize(1);
    }
    cursor.at = group_begins_[cursor.first_group];
    if (cursor.batch_rows == 0) {
      const int64_t rows = std::max<int64_t>(1, group_begins_[cursor.last_group + 1] - cursor.at);
      const int64_t row_bytes = std::max<int64_t>(1, stated_bytes(*metadata, leaves) / rows);
      cursor.batch_rows =
          std::clamp<int64_t>(static_cast<int64_t>(kPieceBytes) / 4 / row_bytes, 1, kMostBatchRows);
    }
    cursor.reader = opened_.reader(metadata, cursor.batch_rows,
                                   std::max<int64_t>(1, static_cast<int64_t>(leaves.size())));
    cursor.batches = opened_.take(cursor.reader->GetRecordBatchReader(groups, leaves));
  }

  static int64_t stated_bytes(const parquet::FileMetaData& metadata, const std::vector<int>& leaves) {
    int64_t bytes = 0;
    for (int g = 0; g < metadata.num_row_groups(); ++g) {
      const auto group = metadata.RowGroup(g);
      for (const int leaf : leaves)
        bytes += std::clamp<int64_t>(group->ColumnChunk(leaf)->total_uncompressed_size(), 0, kPoolBytes);
    }
    return bytes;
  }

  /// Leaf columns of the file below the wanted fields.
  std::vector<int> leaves_of(const std::vector<Field>& fields) const {
    std::vector<int> leaves;
    for (int i = 0; i < opened_.metadata->num_columns(); ++i) {
      const std::string path = opened_.metadata->schema()->Column(i)->path()->ToDotString();
      const bool is_wanted = std::any_of(fields.begin(), fields.end(), [&](const Field& f) {
        return path.starts_with(f.name) && (path.size() == f.name.size() || path[f.name.size()] == '.');
      });
      if (is_wanted) leaves.push_back(i);
    }
    return leaves;
  }

  Opened opened_;
  std::vector<Field> fields_;
  bool reads_by_group_ = false;
  std::vector<int64_t> group_begins_ = {0};  // the first row of each row group, then the end
  std::shared_ptr<Parked<Cursor>> parked_ = std::make_shared<Parked<Cursor>>(4);
};

}  // namespace

std::unique_ptr<RowFile> open_parquet_rows(RowSource source) {
  return std::make_unique<ParquetFile>(std::move(source));
}

}  // namespace trireme::data
#endif
