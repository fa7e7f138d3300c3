// Parquet files through Arrow: the table is decoded into memory once, rows are picked from its columns.
#if TRIREME_ARROW
#include <arrow/api.h>
#include <arrow/io/memory.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/files/file.h"
#include "data/readers/readers.h"

namespace trireme::data {
namespace {

using base::require;
using tensor::DType;
using tensor::Tensor;

void check(const arrow::Status& status) {
  if (status.IsOutOfMemory()) base::fail(base::ErrorCode::exhausted, "out of memory: ", status.message());
  require(status.ok(), status.message());
}

template <class T>
T take_result(arrow::Result<T> result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

/// The element type of a tensor, for Arrow types that are one; dates and times are their integers.
std::optional<DType> dtype_of_arrow(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::BOOL: return DType::boolean;
    case arrow::Type::INT8: return DType::i8;
    case arrow::Type::UINT8: return DType::u8;
    case arrow::Type::INT16: return DType::i16;
    case arrow::Type::UINT16: return DType::u16;
    case arrow::Type::INT32:
    case arrow::Type::DATE32:
    case arrow::Type::TIME32: return DType::i32;
    case arrow::Type::UINT32: return DType::u32;
    case arrow::Type::INT64:
    case arrow::Type::DATE64:
    case arrow::Type::TIME64:
    case arrow::Type::TIMESTAMP:
    case arrow::Type::DURATION: return DType::i64;
    case arrow::Type::UINT64: return DType::u64;
    case arrow::Type::HALF_FLOAT: return DType::f16;
    case arrow::Type::FLOAT: return DType::f32;
    case arrow::Type::DOUBLE: return DType::f64;
    default: return std::nullopt;
  }
}

bool is_bytes(const arrow::DataType& type) {
  return type.id() == arrow::Type::BINARY || type.id() == arrow::Type::LARGE_BINARY ||
         type.id() == arrow::Type::FIXED_SIZE_BINARY;
}

/// The items' type of a list of numbers, else null.
std::shared_ptr<arrow::DataType> list_items(const arrow::DataType& type) {
  const bool is_list = type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
                       type.id() == arrow::Type::FIXED_SIZE_LIST;
  if (!is_list || !dtype_of_arrow(*type.field(0)->type())) return nullptr;
  return type.field(0)->type();
}

Field field_of(const arrow::Field& from) {
  Field field{from.name()};
  const arrow::DataType& type = *from.type();
  if (const auto items = list_items(type)) {
    field.dtype = *dtype_of_arrow(*items);
    const bool fixed = type.id() == arrow::Type::FIXED_SIZE_LIST;
    field.shape = {fixed ? tensor::Dim(static_cast<const arrow::FixedSizeListType&>(type).list_size())
                         : tensor::Dim::unknown()};
  } else if (const auto dtype = dtype_of_arrow(type)) {
    field.dtype = *dtype;
  } else {
    field.kind = is_bytes(type) ? FieldKind::bytes : FieldKind::text;
  }
  return field;
}

/// Elements [begin, begin + count) of a primitive array; nulls among them are refused.
Tensor numbers(const arrow::Array& array, DType dtype, int64_t begin, int64_t count, tensor::Dims dims) {
  Tensor t = Tensor::empty(dtype, std::move(dims));
  for (int64_t i = begin; array.null_count() > 0 && i < begin + count; ++i) {
    require(array.IsValid(i), "list has a null among its numbers");
  }
  if (dtype == DType::boolean) {
    const auto& bits = static_cast<const arrow::BooleanArray&>(array);
    for (int64_t i = 0; i < count; ++i)
      t.mutable_data<bool>()[static_cast<size_t>(i)] = bits.Value(begin + i);
    return t;
  }
  const auto width = static_cast<int64_t>(tensor::bits_of(dtype) / 8);
  const uint8_t* from = array.data()->buffers[1]->data() + (array.offset() + begin) * width;
  std::copy_n(reinterpret_cast<const std::byte*>(from), count * width, t.mutable_raw());
  return t;
}

template <class List>
Tensor list_numbers(const arrow::Array& array, DType dtype, int64_t row) {
  const auto& list = static_cast<const List&>(array);
  const int64_t count = list.value_length(row);
  return numbers(*list.values(), dtype, list.value_offset(row), count, {count});
}

Tensor list_tensor(const arrow::Array& array, DType dtype, int64_t row) {
  switch (array.type_id()) {
    case arrow::Type::LIST: return list_numbers<arrow::ListArray>(array, dtype, row);
    case arrow::Type::LARGE_LIST: return list_numbers<arrow::LargeListArray>(array, dtype, row);
    default: return list_numbers<arrow::FixedSizeListArray>(array, dtype, row);
  }
}

std::string bytes_at(const arrow::Array& array, int64_t row) {
  switch (array.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY: return static_cast<const arrow::BinaryArray&>(array).GetString(row);
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY: return static_cast<const arrow::LargeBinaryArray&>(array).GetString(row);
    case arrow::Type::FIXED_SIZE_BINARY:
      return std::string(static_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(row));
    default: return take_result(array.GetScalar(row))->ToString();  // decimals, maps, nested lists
  }
}

/// A column and where its chunks end.
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

/// Refuses, before anything is decoded, what the file says is larger than the limit.
void check_size(const parquet::FileMetaData& file, const std::vector<int>& leaves, int64_t limit_bytes) {
  int64_t bytes = 0;
  for (int g = 0; g < file.num_row_groups(); ++g) {
    const auto group = file.RowGroup(g);
    for (const int leaf : leaves) {
      bytes += std::clamp<int64_t>(group->ColumnChunk(leaf)->total_uncompressed_size(), 0, limit_bytes);
      if (bytes > limit_bytes) {
        base::fail(base::ErrorCode::exhausted, "Parquet columns exceed the limit of ", limit_bytes,
                   " bytes in memory; choose fewer with the option columns or raise max_unpacked");
      }
    }
  }
}

class ParquetDataset : public Dataset {
 public:
  ParquetDataset(const std::string& path, const std::vector<std::string>& columns, int64_t limit_bytes)
      : pool_(arrow::default_memory_pool(), pool_bytes(limit_bytes)) {
    mapped_ = base::MappedFile::open(path);
    const auto buffer = std::make_shared<arrow::Buffer>(
        reinterpret_cast<const uint8_t*>(mapped_->bytes().data()), static_cast<int64_t>(mapped_->size()));
    const auto file = std::make_shared<arrow::io::BufferReader>(buffer);
    const auto reader = take_result(parquet::arrow::OpenFile(file, &pool_));
    const parquet::FileMetaData& metadata = *reader->parquet_reader()->metadata();
    const std::vector<int> leaves = leaves_of(metadata, columns);
    check_size(metadata, leaves, limit_bytes);
    reader->set_use_threads(false);
    std::shared_ptr<arrow::Table> table = take_result(reader->ReadTable(leaves));
    check(table->ValidateFull());
    rows_ = table->num_rows();
    add_columns(flat(std::move(table)));
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
      const arrow::Array& array = *c.data->chunk(static_cast<int>(chunk));
      const int64_t row = index - (chunk == 0 ? 0 : c.ends[chunk - 1]);
      if (array.IsNull(row)) continue;  // the sample lacks the field
      sample.values.push_back(value_at(c.field, array, row));
    }
    return sample;
  }

 private:
  /// What decoding may hold at once: the columns, twice while a buffer grows, and pages. Sizes that the file
  /// states are its author's word, and a page of a few bytes may hold any number of equal values.
  static int64_t pool_bytes(int64_t limit_bytes) {
    constexpr int64_t kPages = int64_t{64} << 20;
    return limit_bytes > (INT64_MAX - kPages) / 2 ? INT64_MAX : 2 * limit_bytes + kPages;
  }

  /// Structs as columns of their own, "image.bytes" and "image.path".
  static std::shared_ptr<arrow::Table> flat(std::shared_ptr<arrow::Table> table) {
    const auto has_struct = [&] {
      const arrow::FieldVector& fields = table->schema()->fields();
      return std::any_of(fields.begin(), fields.end(),
                         [](const auto& f) { return f->type()->id() == arrow::Type::STRUCT; });
    };
    while (has_struct()) table = take_result(table->Flatten());
    return table;
  }

  void add_columns(const std::shared_ptr<arrow::Table>& table) {
    for (int i = 0; i < table->num_columns(); ++i) {
      Column c{field_of(*table->field(i)), table->column(i), {}};
      int64_t end = 0;
      for (const auto& chunk : c.data->chunks()) c.ends.push_back(end += chunk->length());
      info_.fields.push_back(c.field);
      columns_.push_back(std::move(c));
    }
  }

  static Value value_at(const Field& field, const arrow::Array& array, int64_t row) {
    if (field.kind != FieldKind::tensor) return {field.name, {}, {bytes_at(array, row)}};
    if (field.shape.rank() == 1) return {field.name, list_tensor(array, field.dtype, row), {}};
    return {field.name, numbers(array, field.dtype, row, 1, {}), {}};
  }

  arrow::CappedMemoryPool pool_;                    // outlives what it gave
  std::shared_ptr<const base::MappedFile> mapped_;  // uncompressed columns may lie in it
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
