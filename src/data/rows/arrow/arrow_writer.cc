// Writes Parquet and Arrow files. Rows wait for a full group, so how they arrive does not affect groups.
#if TRIREME_ARROW
#include <arrow/api.h>
#include <arrow/array/concatenate.h>
#include <arrow/io/interfaces.h>
#include <arrow/ipc/writer.h>
#include <arrow/util/compression.h>
#include <arrow/util/key_value_metadata.h>
#include <parquet/arrow/writer.h>
#include <parquet/exception.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "data/readers/arrow_values.h"
#include "data/rows/arrow/arrow_columns.h"
#include "data/rows/arrow/arrow_io.h"
#include "data/rows/writers.h"

namespace trireme::data {
namespace {

constexpr int64_t kGroupRows = 65536;
constexpr int64_t kGroupBytes = int64_t{32} << 20;

arrow::Compression::type compression_of(const RowWriterOptions& options) {
  const std::string& name = options.compression;
  if (name == "zstd") return arrow::Compression::ZSTD;
  if (name == "snappy") return arrow::Compression::SNAPPY;
  if (name == "gzip") return arrow::Compression::GZIP;
  if (name == "lz4")
    return options.format == "arrow" ? arrow::Compression::LZ4_FRAME : arrow::Compression::LZ4;
  return arrow::Compression::UNCOMPRESSED;
}

/// The file, and what its store threw while the library wrote.
struct GroupFile {
  std::shared_ptr<arrow::io::OutputStream> stream;
  std::shared_ptr<StoreTrouble> trouble;
};

/// The destination of row groups.
class GroupSink {
 public:
  virtual ~GroupSink() = default;
  virtual arrow::Status write(const std::shared_ptr<arrow::RecordBatch>& group) = 0;
  virtual arrow::Status close() = 0;
};

class ParquetSink : public GroupSink {
 public:
  ParquetSink(const std::shared_ptr<arrow::Schema>& schema, const std::vector<Field>& fields,
              const GroupFile& to, const RowWriterOptions& options) {
    parquet::WriterProperties::Builder properties;
    properties.created_by("trireme")->compression(compression_of(options))->enable_page_checksum();
    properties.max_row_group_length(kGroupRows);
    for (const Field& field : fields) {
      // Embeddings rarely repeat a number: a dictionary of them would be abandoned after a megabyte.
      if (field.kind != FieldKind::tensor || !tensor::is_float(field.dtype)) continue;
      std::string path = field.name;
      for (size_t d = 0; field.shape.has_rank() && d < field.shape.rank(); ++d) path += ".list.element";
      properties.disable_dictionary(path);
    }
    parquet::ArrowWriterProperties::Builder arrow_properties;
    arrow_properties.store_schema();
    auto writer = parquet::arrow::FileWriter::Open(*schema, arrow::default_memory_pool(), to.stream,
                                                   properties.build(), arrow_properties.build());
    to.trouble->check(writer.status());  // it wrote the first bytes
    writer_ = std::move(*writer);
  }
  arrow::Status write(const std::shared_ptr<arrow::RecordBatch>& group) override {
    ARROW_ASSIGN_OR_RAISE(const auto table, arrow::Table::FromRecordBatches({group}));
    return writer_->WriteTable(*table, kGroupRows);
  }
  arrow::Status close() override { return writer_->Close(); }

 private:
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
};

class ArrowSink : public GroupSink {
 public:
  ArrowSink(const std::shared_ptr<arrow::Schema>& schema, const GroupFile& to,
            const RowWriterOptions& options) {
    arrow::ipc::IpcWriteOptions write_options = arrow::ipc::IpcWriteOptions::Defaults();
    write_options.use_threads = false;
    if (!options.compression.empty()) {
      auto codec = arrow::util::Codec::Create(compression_of(options));
      check_arrow(codec.status());
      write_options.codec = std::move(*codec);
    }
    auto writer = arrow::ipc::MakeFileWriter(to.stream, schema, write_options);
    to.trouble->check(writer.status());  // it wrote the first bytes
    writer_ = *writer;
  }
  arrow::Status write(const std::shared_ptr<arrow::RecordBatch>& group) override {
    return writer_->WriteRecordBatch(*group);
  }
  arrow::Status close() override { return writer_->Close(); }

 private:
  std::shared_ptr<arrow::ipc::RecordBatchWriter> writer_;
};

/// Lists of no items: the library writes such columns of Parquet as ones that nobody can read.
bool holds_empty_lists(const arrow::DataType& type) {
  const bool is_empty = type.id() == arrow::Type::FIXED_SIZE_LIST &&
                        static_cast<const arrow::FixedSizeListType&>(type).list_size() == 0;
  return is_empty || std::any_of(type.fields().begin(), type.fields().end(),
                                 [](const auto& field) { return holds_empty_lists(*field->type()); });
}

void check_parquet(const arrow::Schema& schema) {
  for (const auto& field : schema.fields()) {
    if (holds_empty_lists(*field->type()))
      base::fail_unsupported("no column of Parquet for lists of the fixed size 0: '", field->name(), "', ",
                             field->type()->ToString(), "; arrow and jsonl hold them");
  }
}

class ArrowWriter : public RowWriter {
 public:
  ArrowWriter(StoreWriter& to, const std::vector<Field>& fields, const RowWriterOptions& options)
      : fields_(fields) {
    arrow::FieldVector columns;
    for (const Field& field : fields)
      columns.push_back(arrow::field(field.name, type_of(field, options.carried)));
    std::vector<std::string> keys, values;
    for (const auto& [key, value] : options.metadata) {
      keys.push_back(key);
      values.push_back(value);
    }
    const auto metadata = keys.empty() ? nullptr : arrow::key_value_metadata(keys, values);
    schema_ = arrow::schema(columns, metadata);
    waiting_.resize(fields.size());
    if (options.format == "parquet") check_parquet(*schema_);
    const GroupFile output{make_arrow_output(to, trouble_), trouble_};
    guarded([&] {
      if (options.format == "parquet") {
        sink_ = std::make_unique<ParquetSink>(schema_, fields, output, options);
      } else {
        sink_ = std::make_unique<ArrowSink>(schema_, output, options);
      }
      return arrow::Status::OK();
    });
  }

  void write(const Rows& rows) override {
    check_rows(rows, fields_);
    int64_t begin = 0;
    for (int64_t row = 0; row < rows.count; ++row) {
      bytes_ += row_bytes(rows, row);
      const int64_t waiting = waiting_rows_ + row + 1 - begin;
      if (waiting < kGroupRows && bytes_ < kGroupBytes) continue;
      wait(rows, begin, row + 1 - begin);
      write_group();
      begin = row + 1;
    }
    wait(rows, begin, rows.count - begin);
  }

  void finish() override {
    write_group();
    guarded([&] { return sink_->close(); });
  }

 private:
  static std::shared_ptr<arrow::DataType> type_of(const Field& field, const Rows* carried) {
    const Column* column = carried == nullptr ? nullptr : carried->find(field.name);
    if (column != nullptr && column->original != nullptr) return array_of(column->original)->type();
    return arrow_type_of(field);
  }

  static int64_t row_bytes(const Rows& rows, int64_t row) {
    int64_t bytes = 0;
    for (const Column& column : rows.columns) {
      if (column.numbers.defined()) {
        bytes += column.numbers.bytes() / rows.count;
      } else if (!column.ragged.empty()) {
        bytes += column.ragged[static_cast<size_t>(row)].bytes();
      } else {
        bytes += static_cast<int64_t>(column.strings[static_cast<size_t>(row)].size()) + 4;
      }
    }
    return bytes;
  }

  void wait(const Rows& rows, int64_t begin, int64_t count) {
    if (count == 0) return;
    for (size_t c = 0; c < fields_.size(); ++c) {
      keep_pools(rows.columns[c].original);
      waiting_[c].push_back(
          arrow_array_of(rows.columns[c], begin, count, schema_->field(static_cast<int>(c))->type()));
    }
    waiting_rows_ += count;
  }

  /// Groups may share memory with the arrays that they were made of, and the library keeps dictionaries.
  void keep_pools(const Original& original) {
    if (original == nullptr) return;
    const std::vector<PoolHandle>& pools = pools_of(original);
    pools_.insert(pools.begin(), pools.end());
  }

  void write_group() {
    if (waiting_rows_ == 0) return;
    guarded([&]() -> arrow::Status {
      arrow::ArrayVector columns;
      for (arrow::ArrayVector& parts : waiting_) {
        ARROW_ASSIGN_OR_RAISE(auto whole, arrow::Concatenate(parts));
        columns.push_back(std::move(whole));
        parts.clear();
      }
      return sink_->write(arrow::RecordBatch::Make(schema_, waiting_rows_, columns));
    });
    waiting_rows_ = 0;
    bytes_ = 0;
  }

  template <class Body>
  void guarded(const Body& body) {
    try {
      trouble_->check(body());
    } catch (const parquet::ParquetException& e) {
      trouble_->check(arrow::Status::Invalid("cannot write Parquet: ", e.what()));
    }
  }

  std::set<PoolHandle> pools_;  // of carried columns; outlive what is behind them here
  std::vector<Field> fields_;
  std::shared_ptr<StoreTrouble> trouble_ = std::make_shared<StoreTrouble>();
  std::shared_ptr<arrow::Schema> schema_;
  std::unique_ptr<GroupSink> sink_;
  std::vector<arrow::ArrayVector> waiting_;  // by column, in row order
  int64_t waiting_rows_ = 0, bytes_ = 0;
};

}  // namespace

std::unique_ptr<RowWriter> make_arrow_writer(StoreWriter& to, const std::vector<Field>& fields,
                                             const RowWriterOptions& options) {
  return std::make_unique<ArrowWriter>(to, fields, options);
}

}  // namespace trireme::data
#endif
