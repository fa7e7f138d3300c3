// Converts Arrow's types and arrays to tensors, fields and texts.
#if TRIREME_ARROW
#include "data/readers/arrow_values.h"

#include <arrow/api.h>
#include <arrow/compute/api_vector.h>
#include <arrow/compute/exec.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"

namespace trireme::data {

using base::require;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

namespace {

template <class T>
T take_result(arrow::Result<T> result) {
  check_arrow(result.status());
  return std::move(result).ValueUnsafe();
}

/// The element type of a tensor for a primitive Arrow type; dates and times become integers.
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
         type.id() == arrow::Type::BINARY_VIEW || type.id() == arrow::Type::FIXED_SIZE_BINARY;
}

bool is_list(const arrow::DataType& type) {
  return type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
         type.id() == arrow::Type::FIXED_SIZE_LIST;
}

/// A contiguous range of an array's elements.
struct Run {
  const arrow::Array* array;
  int64_t begin, count;
};

/// Refuses null items, except in `rows` that are null themselves and so may hold anything.
void require_no_null(const Run& run, const Run& rows) {
  const int64_t per_row = rows.count == 0 ? 0 : run.count / rows.count;
  for (int64_t i = 0; run.array->null_count() > 0 && i < run.count; ++i) {
    const bool is_fine = run.array->IsValid(run.begin + i) || rows.array->IsNull(rows.begin + i / per_row);
    require(is_fine, "list has a null among its items");
  }
}

/// The items of a run of lists. All lists must have the same length, which is stored in `length`.
template <class List>
Run items_of(const Run& run, int64_t& length) {
  const auto& lists = static_cast<const List&>(*run.array);
  length = run.count == 0 ? 0 : lists.value_length(run.begin);
  for (int64_t i = run.begin; i < run.begin + run.count; ++i) {
    require(lists.value_length(i) == length, "lists beside one another have ", length, " and ",
            lists.value_length(i), " items");
  }
  const int64_t begin = run.count == 0 ? 0 : lists.value_offset(run.begin);
  return {lists.values().get(), begin, run.count * length};
}

Run items_of(const Run& run, int64_t& length) {
  switch (run.array->type_id()) {
    case arrow::Type::LIST: return items_of<arrow::ListArray>(run, length);
    case arrow::Type::LARGE_LIST: return items_of<arrow::LargeListArray>(run, length);
    default: {
      const auto& lists = static_cast<const arrow::FixedSizeListArray&>(*run.array);
      length = lists.list_type()->list_size();
      return {lists.values().get(), lists.value_offset(run.begin), run.count * length};
    }
  }
}

/// The elements of a primitive array: a view without a copy, unless bits must be unpacked.
Tensor numbers(const Run& run, DType dtype, Dims dims, const std::shared_ptr<const void>& owner) {
  if (dtype == DType::boolean) {
    Tensor t = Tensor::empty(dtype, std::move(dims));
    const auto& bits = static_cast<const arrow::BooleanArray&>(*run.array);
    for (int64_t i = 0; i < run.count; ++i)
      t.mutable_data<bool>()[static_cast<size_t>(i)] = bits.Value(run.begin + i);
    return t;
  }
  const auto width = static_cast<int64_t>(tensor::bits_of(dtype) / 8);
  if (run.count == 0) return Tensor::empty(dtype, std::move(dims));
  const uint8_t* from = run.array->data()->buffers[1]->data() + (run.array->offset() + run.begin) * width;
  const auto bytes = std::as_bytes(std::span(from, static_cast<size_t>(run.count * width)));
  return Tensor::view(dtype, std::move(dims), bytes, owner);
}

/// Sets missing rows to zero, because what the array stores in their place is unspecified.
Tensor with_zeros(const Tensor& t, const arrow::Array& array, int64_t begin) {
  Tensor zeroed = t.clone();
  const int64_t rows = t.dims()[0];
  const auto row_bytes = static_cast<size_t>(rows == 0 ? 0 : t.bytes() / rows);
  for (int64_t i = 0; i < rows; ++i) {
    if (array.IsNull(begin + i))
      std::memset(zeroed.mutable_raw() + static_cast<size_t>(i) * row_bytes, 0, row_bytes);
  }
  return zeroed;
}

std::shared_ptr<arrow::Array> plain_array(std::shared_ptr<arrow::Array> array,
                                          arrow::compute::ExecContext* context) {
  for (;;) {
    if (array->type_id() == arrow::Type::EXTENSION) {
      array = static_cast<const arrow::ExtensionArray&>(*array).storage();
    } else if (array->type_id() == arrow::Type::DICTIONARY) {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(*array);
      array = take_result(arrow::compute::Take(*coded.dictionary(), *coded.indices(),
                                               arrow::compute::TakeOptions::Defaults(), context));
    } else {
      return array;
    }
  }
}

std::shared_ptr<arrow::Table> plain_columns(const std::shared_ptr<arrow::Table>& table,
                                            arrow::compute::ExecContext* context) {
  arrow::FieldVector fields = table->schema()->fields();
  arrow::ChunkedArrayVector columns = table->columns();
  for (size_t i = 0; i < fields.size(); ++i) {
    const arrow::Type::type id = fields[i]->type()->id();
    if (id != arrow::Type::DICTIONARY && id != arrow::Type::EXTENSION) continue;
    arrow::ArrayVector chunks;
    for (const auto& chunk : columns[i]->chunks()) chunks.push_back(plain_array(chunk, context));
    std::shared_ptr<arrow::DataType> type = fields[i]->type();
    while (type->id() == arrow::Type::DICTIONARY || type->id() == arrow::Type::EXTENSION) {
      type = type->id() == arrow::Type::DICTIONARY
                 ? static_cast<const arrow::DictionaryType&>(*type).value_type()
                 : static_cast<const arrow::ExtensionType&>(*type).storage_type();
    }
    fields[i] = fields[i]->WithType(type);
    columns[i] = std::make_shared<arrow::ChunkedArray>(std::move(chunks), type);
  }
  return arrow::Table::Make(arrow::schema(fields, table->schema()->metadata()), columns, table->num_rows());
}

}  // namespace

bool exceeds_cap(const arrow::Status& status) {
  return status.IsOutOfMemory() && status.message().find("cap exceeded") != std::string::npos;
}

void check_arrow(const arrow::Status& status) {
  // A pool's cap is what the file may cost: unlike a lack of memory it does not pass.
  if (exceeds_cap(status))
    base::fail_invalid("a page or a batch of the file, or a row, needs more memory than may be spent on it: ",
                       status.message());
  if (status.IsOutOfMemory()) base::fail(base::ErrorCode::exhausted, "out of memory: ", status.message());
  require(status.ok(), status.message());
}

Field field_of_arrow(const arrow::Field& from) {
  Field field{from.name()};
  const arrow::DataType* type = from.type().get();
  std::vector<tensor::Dim> dims;
  for (; is_list(*type); type = type->field(0)->type().get()) {
    const bool fixed = type->id() == arrow::Type::FIXED_SIZE_LIST;
    dims.push_back(fixed ? tensor::Dim(static_cast<const arrow::FixedSizeListType&>(*type).list_size())
                         : tensor::Dim::unknown());
  }
  if (const auto dtype = dtype_of_arrow(*type)) {
    field.dtype = *dtype;
    field.shape = std::move(dims);
  } else {
    field.kind = is_bytes(*from.type()) ? FieldKind::bytes : FieldKind::text;
    field.is_json = is_json_type(*from.type());
  }
  return field;
}

Tensor arrow_tensor(const std::shared_ptr<const arrow::Array>& array, const Field& field, int64_t begin,
                    int64_t count) {
  const Run rows{array.get(), begin, count};
  Run run = rows;
  Dims dims = {count};
  for (size_t d = 0; d < field.shape.rank(); ++d) {
    int64_t length = 0;
    if (d > 0) require_no_null(run, rows);
    run = items_of(run, length);
    dims.push_back(length);
  }
  if (field.shape.rank() > 0) require_no_null(run, rows);
  Tensor t = numbers(run, field.dtype, std::move(dims), array);
  return array->null_count() > 0 ? with_zeros(t, *array, begin) : t;
}

Tensor arrow_tensor_at(const std::shared_ptr<const arrow::Array>& array, const Field& field, int64_t row) {
  const Tensor t = arrow_tensor(array, field, row, 1);
  return t.reshaped({t.dims().begin() + 1, t.dims().end()});
}

std::shared_ptr<arrow::Table> flat_table(std::shared_ptr<arrow::Table> table, arrow::MemoryPool* pool) {
  arrow::compute::ExecContext context(pool == nullptr ? arrow::default_memory_pool() : pool);
  const auto has_struct = [&] {
    const arrow::FieldVector& fields = table->schema()->fields();
    return std::any_of(fields.begin(), fields.end(),
                       [](const auto& f) { return f->type()->id() == arrow::Type::STRUCT; });
  };
  table = plain_columns(table, &context);
  while (has_struct()) table = plain_columns(take_result(table->Flatten()), &context);
  return table;
}

}  // namespace trireme::data
#endif
