// Parquet files through Arrow: the table is decoded into memory once, and rows are read from its columns.
#if TRIREME_ARROW
#include <arrow/api.h>
#include <arrow/io/memory.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>

#include "base/error.h"
#include "base/files/file.h"
#include "data/readers/arrow_values.h"
#include "data/readers/readers.h"

namespace trireme::data {
namespace {

using base::require;

template <class T>
T take_result(arrow::Result<T> result) {
  check_arrow(result.status());
  return std::move(result).ValueUnsafe();
}

/// A column, and the row at which each of its chunks ends.
struct Column {
  Field field;
  std::shared_ptr<arrow::ChunkedArray> data;
  std::vector<int64_t> ends;
};

/// Indices of the leaf columns below the wanted top-level ones; all of them for an empty list.
std::vector<int> leaves_of(const parquet::FileMetaData& file, const std::vector<std::string>& columns) {
  std::vector<int> leaves;
  std::vector<bool> found(columns.size());
  std::string there;
  for (int i = 0; i < file.num_columns(); ++i) {
    const std::string root = file.schema()->Column(i)->path()->ToDotVector().at(0);
    const auto at = std::find(columns.begin(), columns.end(), root);
    if (at != columns.end()) found[static_cast<size_t>(at - columns.begin())] = true;
    if (columns.empty() || at != columns.end()) leaves.push_back(i);
    if (!there.ends_with(root)) there += (there.empty() ? "" : ", ") + root;
  }
  for (size_t i = 0; i < columns.size(); ++i) {
    require(found[i], "Parquet file has no column '", columns[i], "'; it has ", there);
  }
  return leaves;
}

[[noreturn]] void fail_limit(int64_t limit_bytes) {
  base::fail(base::ErrorCode::exhausted, "Parquet columns exceed the limit of ", limit_bytes,
             " bytes in memory; choose fewer with the option columns or raise max_unpacked");
}

/// Refuses, before decoding, a file whose stated sizes exceed the limit.
void check_size(const parquet::FileMetaData& file, const std::vector<int>& leaves, int64_t limit_bytes) {
  int64_t bytes = 0;
  for (int g = 0; g < file.num_row_groups(); ++g) {
    const auto group = file.RowGroup(g);
    for (const int leaf : leaves) {
      bytes += std::clamp<int64_t>(group->ColumnChunk(leaf)->total_uncompressed_size(), 0, limit_bytes);
      if (bytes > limit_bytes) fail_limit(limit_bytes);
    }
  }
}

class ParquetDataset : public Dataset {
 public:
  ParquetDataset(const std::string& path, const std::vector<std::string>& columns, int64_t limit_bytes)
      : mapped_(base::MappedFile::open(path)),
        pool_(arrow::default_memory_pool(), pool_bytes(limit_bytes, mapped_->size())) {
    const auto buffer = std::make_shared<arrow::Buffer>(
        reinterpret_cast<const uint8_t*>(mapped_->bytes().data()), static_cast<int64_t>(mapped_->size()));
    const auto file = std::make_shared<arrow::io::BufferReader>(buffer);
    const auto reader = take_result(parquet::arrow::OpenFile(file, &pool_));
    const parquet::FileMetaData& metadata = *reader->parquet_reader()->metadata();
    const std::vector<int> leaves = leaves_of(metadata, columns);
    check_size(metadata, leaves, limit_bytes);
    reader->set_use_threads(false);
    auto read = reader->ReadTable(leaves);
    if (exceeds_cap(read.status()) && pool_bytes(limit_bytes, mapped_->size()) < paid_bytes(mapped_->size()))
      fail_limit(limit_bytes);
    std::shared_ptr<arrow::Table> table = take_result(std::move(read));
    check_arrow(table->ValidateFull());
    rows_ = table->num_rows();
    add_columns(flat_table(std::move(table), &pool_));
    info_.format = "parquet";
    info_.shards = {{path, rows_, static_cast<int64_t>(mapped_->size())}};
  }

  int64_t size() const override { return rows_; }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    Sample sample;
    for (const Column& c : columns_) {
      const auto chunk =
          static_cast<size_t>(std::upper_bound(c.ends.begin(), c.ends.end(), index) - c.ends.begin());
      const std::shared_ptr<arrow::Array> array = c.data->chunk(static_cast<int>(chunk));
      const int64_t row = index - (chunk == 0 ? 0 : c.ends[chunk - 1]);
      if (array->IsNull(row)) continue;  // the sample lacks the field
      sample.values.push_back(value_at(c.field, array, row));
    }
    return sample;
  }

 private:
  static constexpr int64_t kPages = int64_t{64} << 20;

  /// What the bytes of a file pay for, at what numbers and texts pack to.
  static int64_t paid_bytes(size_t file_bytes) {
    constexpr int64_t kFree = int64_t{512} << 20, kPerByte = 64;
    return kFree + std::min(static_cast<int64_t>(file_bytes), INT64_MAX / 128) * kPerByte;
  }
  /// What decoding may allocate at once: the columns, twice while a buffer grows, and pages. Stated sizes
  /// cannot be trusted, because a page of a few bytes may hold any number of equal values, and a dictionary
  /// any text for each row: so the file's bytes must pay for them too.
  static int64_t pool_bytes(int64_t limit_bytes, size_t file_bytes) {
    const int64_t paid = paid_bytes(file_bytes);
    return limit_bytes > (paid - kPages) / 2 ? paid : 2 * limit_bytes + kPages;
  }

  void add_columns(const std::shared_ptr<arrow::Table>& table) {
    for (int i = 0; i < table->num_columns(); ++i) {
      Column c{field_of_arrow(*table->field(i)), table->column(i), {}};
      int64_t end = 0;
      for (const auto& chunk : c.data->chunks()) c.ends.push_back(end += chunk->length());
      info_.fields.push_back(c.field);
      columns_.push_back(std::move(c));
    }
  }

  /// Returns a copy, because samples may outlive the data set, which owns the memory pool.
  static Value value_at(const Field& field, const std::shared_ptr<arrow::Array>& array, int64_t row) {
    if (field.kind != FieldKind::tensor) return {field.name, {}, {arrow_text_at(*array, row)}};
    return {field.name, arrow_tensor_at(array, field, row).clone(), {}};
  }

  std::shared_ptr<const base::MappedFile> mapped_;  // uncompressed columns may lie in it
  arrow::CappedMemoryPool pool_;                    // must outlive the memory it gave
  int64_t rows_ = 0;
  std::vector<Column> columns_;
  DatasetInfo info_;
};

}  // namespace

DatasetPtr open_parquet(const std::string& path, const std::vector<std::string>& columns,
                        int64_t limit_bytes) {
  try {
    return std::make_shared<ParquetDataset>(path, columns, limit_bytes);
  } catch (const base::Error& e) {
    throw e.with("'" + path + "'");
  } catch (const parquet::ParquetException& e) {
    base::fail_invalid("'", path, "': Parquet file is damaged: ", e.what());
  }
}

}  // namespace trireme::data
#endif
