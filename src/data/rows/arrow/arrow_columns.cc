// Converts columns to Arrow arrays, and Arrow arrays to columns.
#if TRIREME_ARROW
#include "data/rows/arrow/arrow_columns.h"

#include <arrow/api.h>
#include <arrow/array/concatenate.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/utf8.h"
#include "data/readers/arrow_values.h"

namespace trireme::data {

using base::require;
using tensor::DType;
using tensor::Tensor;

namespace {

template <class T>
T take_result(arrow::Result<T> result) {
  check_arrow(result.status());
  return std::move(result).ValueUnsafe();
}

/// What an Original points to.
struct Kept {
  std::vector<PoolHandle> pools;  // outlive the array
  std::shared_ptr<arrow::Array> array;
};

const Kept& kept_of(const Original& original) { return *static_cast<const Kept*>(original.get()); }

Original make_original(std::shared_ptr<arrow::Array> array, std::vector<PoolHandle> pools) {
  return std::make_shared<Kept>(Kept{std::move(pools), std::move(array)});
}

std::shared_ptr<arrow::DataType> scalar_type(DType dtype) {
  switch (dtype) {
    case DType::boolean: return arrow::boolean();
    case DType::i8: return arrow::int8();
    case DType::u8: return arrow::uint8();
    case DType::i16: return arrow::int16();
    case DType::u16: return arrow::uint16();
    case DType::i32: return arrow::int32();
    case DType::u32: return arrow::uint32();
    case DType::i64: return arrow::int64();
    case DType::u64: return arrow::uint64();
    case DType::f16: return arrow::float16();
    case DType::bf16:
    case DType::f32: return arrow::float32();
    case DType::f64: return arrow::float64();
    default:
      base::fail_unsupported("no column of Parquet or Arrow for element type ", tensor::name_of(dtype));
  }
}

std::shared_ptr<arrow::Buffer> copy_of(const void* bytes, int64_t size) {
  std::shared_ptr<arrow::Buffer> buffer = take_result(arrow::AllocateBuffer(size));
  if (size > 0) std::memcpy(buffer->mutable_data(), bytes, static_cast<size_t>(size));
  return buffer;
}

/// Collects the elements of many tensors in one primitive array.
class Elements {
 public:
  Elements(DType dtype, int64_t most) : dtype_(dtype) {
    bytes_.reserve(static_cast<size_t>(tensor::bytes_of(dtype, most)));
  }

  void add(const Tensor& t) { add(t.raw(), t.elements()); }
  void add(const std::byte* raw, int64_t count) {
    const auto size = static_cast<size_t>(tensor::bytes_of(dtype_, count));
    bytes_.append(reinterpret_cast<const char*>(raw), size);
    count_ += count;
  }

  std::shared_ptr<arrow::ArrayData> finish() const {
    std::shared_ptr<arrow::Buffer> values;
    if (dtype_ == DType::boolean) {
      std::string bits(static_cast<size_t>(count_ + 7) / 8, '\0');
      for (size_t i = 0; i < bytes_.size(); ++i)
        bits[i / 8] = static_cast<char>(bits[i / 8] | (bytes_[i] != 0 ? 1 : 0) << (i % 8));
      values = copy_of(bits.data(), static_cast<int64_t>(bits.size()));
    } else if (dtype_ == DType::bf16) {
      std::vector<float> wide(static_cast<size_t>(count_));
      for (size_t i = 0; i < wide.size(); ++i) {
        uint16_t narrow = 0;
        std::memcpy(&narrow, bytes_.data() + 2 * i, 2);
        wide[i] = tensor::bf16_bits_to_f32(narrow);
      }
      values = copy_of(wide.data(), count_ * 4);
    } else {
      values = copy_of(bytes_.data(), static_cast<int64_t>(bytes_.size()));
    }
    return arrow::ArrayData::Make(scalar_type(dtype_), count_, {nullptr, std::move(values)}, 0);
  }

 private:
  DType dtype_;
  std::string bytes_;
  int64_t count_ = 0;
};

/// A bitmap with one bit per row, set if the row has a value; null if every row has one.
std::shared_ptr<arrow::Buffer> validity_of(const Column& column, int64_t begin, int64_t count,
                                           int64_t& nulls) {
  nulls = 0;
  std::string bits(static_cast<size_t>(count + 7) / 8, '\0');
  for (int64_t i = 0; i < count; ++i) {
    const bool missing = column.is_missing_at(begin + i);
    nulls += missing ? 1 : 0;
    const auto at = static_cast<size_t>(i);
    if (!missing) bits[at / 8] = static_cast<char>(bits[at / 8] | 1 << (at % 8));
  }
  return nulls == 0 ? nullptr : copy_of(bits.data(), static_cast<int64_t>(bits.size()));
}

/// The lengths of the lists along one dimension, row after row, as Arrow's offsets.
class Offsets {
 public:
  void add(int64_t length, int64_t times) {
    for (int64_t i = 0; i < times; ++i) {
      end_ += length;
      require(end_ <= INT32_MAX, "lists of a column have more than 2^31 items");
      ends_.push_back(static_cast<int32_t>(end_));
    }
  }
  std::shared_ptr<arrow::Buffer> finish() const {
    return copy_of(ends_.data(), static_cast<int64_t>(ends_.size() * sizeof(int32_t)));
  }

 private:
  std::vector<int32_t> ends_ = {0};
  int64_t end_ = 0;
};

/// Rows of tensors as primitive values, nested in as many lists as there are dimensions.
std::shared_ptr<arrow::Array> tensor_array(const Column& column, int64_t begin, int64_t count) {
  const tensor::Shape& shape = column.field.shape;
  require(shape.has_rank(), "column has tensors of different ranks: '", column.field.name, "'");
  const size_t rank = shape.rank();
  std::vector<Offsets> offsets(rank);
  std::vector<int64_t> counts(rank);  // number of lists along each dimension
  Elements elements(column.field.dtype, 0);
  for (int64_t row = begin; row < begin + count; ++row) {
    const Tensor t = column.tensor_at(row);
    require(t.rank() == rank, "column has tensors of different ranks: '", column.field.name, "'");
    int64_t lists = 1;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t length = t.dims()[d];
      require(!shape[d].is_static() || shape[d].value() == length, "tensor does not fit its column: '",
              column.field.name, "', ", tensor::to_string(t.dims()), " for ", shape.to_string());
      if (!shape[d].is_static()) offsets[d].add(length, lists);
      counts[d] += lists;
      lists *= length;
    }
    elements.add(t);
  }
  int64_t nulls = 0;
  const std::shared_ptr<arrow::Buffer> validity = validity_of(column, begin, count, nulls);
  std::shared_ptr<arrow::ArrayData> data = elements.finish();
  for (size_t d = rank; d-- > 0;) {
    const std::shared_ptr<arrow::DataType> item = data->type;
    if (shape[d].is_static()) {
      const auto type = arrow::fixed_size_list(item, static_cast<int32_t>(shape[d].value()));
      data = arrow::ArrayData::Make(type, counts[d], {nullptr}, {data}, 0);
    } else {
      data = arrow::ArrayData::Make(arrow::list(item), counts[d], {nullptr, offsets[d].finish()}, {data}, 0);
    }
  }
  data->buffers[0] = validity;
  data->null_count = nulls;
  return arrow::MakeArray(data);
}

/// Rows of one shape, which the column stores contiguously: needs no tensor per row.
std::shared_ptr<arrow::Array> even_array(const Column& column, int64_t begin, int64_t count) {
  const Tensor rows = column.numbers.rows(begin, begin + count);
  Elements elements(column.field.dtype, rows.elements());
  elements.add(rows);
  std::shared_ptr<arrow::ArrayData> data = elements.finish();
  for (size_t d = rows.rank(); d-- > 1;) {
    const int64_t size = rows.dims()[d];
    int64_t lists = count;
    for (size_t k = 1; k < d; ++k) lists *= rows.dims()[k];
    data = arrow::ArrayData::Make(arrow::fixed_size_list(data->type, static_cast<int32_t>(size)), lists,
                                  {nullptr}, {data}, 0);
  }
  int64_t nulls = 0;
  data->buffers[0] = validity_of(column, begin, count, nulls);
  data->null_count = nulls;
  return arrow::MakeArray(data);
}

/// Whether a type may hold UTF-8 alone: readers refuse files in which it holds other bytes.
bool is_of_text(const arrow::DataType& type) {
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING;
}

/// Ill-formed sequences become U+FFFD, as in JSON lines.
std::string well_formed(std::string_view bytes) {
  std::string out;
  for (size_t pos = 0; pos < bytes.size();) base::append_utf8(out, base::next_code_point(bytes, pos));
  return out;
}

template <class Builder>
std::shared_ptr<arrow::Array> text_array(Builder builder, const Column& column, int64_t begin,
                                         int64_t count) {
  const bool is_text = is_of_text(*builder.type());
  check_arrow(builder.Reserve(count));
  for (int64_t row = begin; row < begin + count; ++row) {
    const std::string& given = column.strings[static_cast<size_t>(row)];
    if (column.is_missing_at(row)) {
      check_arrow(builder.AppendNull());
    } else if (is_text && !base::is_utf8(given)) {
      check_arrow(builder.Append(well_formed(given)));
    } else {
      check_arrow(builder.Append(given));
    }
  }
  return take_result(builder.Finish());
}

std::shared_ptr<arrow::Array> made_array(const Column& column, int64_t begin, int64_t count,
                                         const arrow::DataType& type) {
  if (column.field.kind != FieldKind::tensor) {
    switch (type.id()) {
      case arrow::Type::LARGE_STRING: return text_array(arrow::LargeStringBuilder(), column, begin, count);
      case arrow::Type::BINARY: return text_array(arrow::BinaryBuilder(), column, begin, count);
      case arrow::Type::LARGE_BINARY: return text_array(arrow::LargeBinaryBuilder(), column, begin, count);
      default: return text_array(arrow::StringBuilder(), column, begin, count);
    }
  }
  const bool is_even = column.numbers.defined() && column.field.shape.is_static();
  return is_even ? even_array(column, begin, count) : tensor_array(column, begin, count);
}

}  // namespace

Original original_of(std::shared_ptr<arrow::Array> array, PoolHandle pool) {
  std::vector<PoolHandle> pools;
  if (pool != nullptr) pools.push_back(std::move(pool));
  return make_original(std::move(array), std::move(pools));
}

std::shared_ptr<arrow::Array> array_of(const Original& original) {
  return {original, kept_of(original).array.get()};
}

const std::vector<PoolHandle>& pools_of(const Original& original) { return kept_of(original).pools; }

Original slice_original(const Original& from, int64_t begin, int64_t count) {
  if (from == nullptr) return nullptr;
  return make_original(kept_of(from).array->Slice(begin, count), pools_of(from));
}

Original join_originals(const std::vector<Original>& parts) {
  arrow::ArrayVector arrays;
  std::vector<PoolHandle> pools;
  for (const Original& part : parts) {
    if (part == nullptr) return nullptr;
    arrays.push_back(kept_of(part).array);
    if (!arrays.back()->type()->Equals(*arrays[0]->type())) return nullptr;
    for (const PoolHandle& pool : pools_of(part)) {
      if (std::find(pools.begin(), pools.end(), pool) == pools.end()) pools.push_back(pool);
    }
  }
  return make_original(take_result(arrow::Concatenate(arrays)), std::move(pools));
}

std::string original_json(const Original& from, int64_t row) {
  return arrow_json_at(*kept_of(from).array, row);
}

namespace {

/// The row's value is no tensor of the column: it counts as missing.
void fail_value(Column& column, int64_t row, const base::Error& error) {
  const auto rows = static_cast<size_t>(array_of(column.original)->length());
  column.errors.resize(rows);
  column.errors[static_cast<size_t>(row)] = error;
  column.is_missing.resize(rows);
  column.is_missing[static_cast<size_t>(row)] = true;
}

/// Tensors of one shape.
void read_even(const std::shared_ptr<arrow::Array>& array, Column& column) {
  const int64_t rows = array->length();
  try {
    column.numbers = arrow_tensor(array, column.field, 0, rows);
    return;
  } catch (const base::Error&) {  // one row is the cause: found below
  }
  tensor::Dims dims = column.field.shape.to_dims();
  dims.insert(dims.begin(), rows);
  column.numbers = Tensor::zeros(column.field.dtype, dims);
  const int64_t row_bytes = rows == 0 ? 0 : column.numbers.bytes() / rows;
  for (int64_t i = 0; i < rows; ++i) {
    try {
      const Tensor row = arrow_tensor_at(array, column.field, i);
      std::memcpy(column.numbers.mutable_raw() + i * row_bytes, row.raw(), static_cast<size_t>(row_bytes));
    } catch (const base::Error& e) {
      fail_value(column, i, e);
    }
  }
}

/// Tensors of a shape for each row.
void read_ragged(const std::shared_ptr<arrow::Array>& array, Column& column) {
  const tensor::Shape& shape = column.field.shape;
  tensor::Dims none(shape.rank(), 0);
  for (size_t d = 0; d < none.size(); ++d) {
    if (shape[d].is_static()) none[d] = shape[d].value();
  }
  for (int64_t i = 0; i < array->length(); ++i) {
    Tensor row;
    try {
      if (!array->IsNull(i)) row = arrow_tensor_at(array, column.field, i);
    } catch (const base::Error& e) {
      fail_value(column, i, e);
    }
    column.ragged.push_back(row.defined() ? row : Tensor::zeros(column.field.dtype, none));
  }
}

}  // namespace

Column column_of(const Field& field, const Original& original) {
  const std::shared_ptr<arrow::Array> array = array_of(original);
  const int64_t rows = array->length();
  Column column{field};
  column.original = original;
  if (array->null_count() > 0) {
    column.is_missing.resize(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) column.is_missing[static_cast<size_t>(i)] = array->IsNull(i);
  }
  if (field.kind == FieldKind::tensor) {
    if (field.shape.is_static()) {
      read_even(array, column);
    } else {
      read_ragged(array, column);
    }
    return column;
  }
  column.strings.reserve(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i)
    column.strings.push_back(array->IsNull(i) ? std::string() : arrow_text_at(*array, i));
  return column;
}

std::shared_ptr<arrow::DataType> arrow_type_of(const Field& field) {
  if (field.kind == FieldKind::text) return arrow::utf8();
  if (field.kind == FieldKind::bytes) return arrow::binary();
  if (!field.shape.has_rank())
    base::fail_unsupported("no column of Parquet or Arrow for tensors of different ranks: '", field.name,
                           "'");
  std::shared_ptr<arrow::DataType> type = scalar_type(field.dtype);
  for (size_t d = field.shape.rank(); d-- > 0;) {
    if (field.shape[d].is_static()) {
      require(field.shape[d].value() <= INT32_MAX, "lists of a column have more than 2^31 items: '",
              field.name, "'");
      type = arrow::fixed_size_list(type, static_cast<int32_t>(field.shape[d].value()));
    } else {
      type = arrow::list(type);
    }
  }
  return type;
}

std::shared_ptr<arrow::Array> arrow_array_of(const Column& column, int64_t begin, int64_t count,
                                             const std::shared_ptr<arrow::DataType>& type) {
  if (column.original != nullptr) {
    const Original rows = slice_original(column.original, begin, count);  // keeps its memory pool alive
    const std::shared_ptr<arrow::Array> array = array_of(rows);
    // Some programs write Parquet files with texts that are no UTF-8.
    if (array->type()->Equals(*type) && (!is_of_text(*type) || array->ValidateFull().ok())) return array;
  }
  for (int64_t row = begin; row < begin + count; ++row) {
    if (const base::Error* error = column.error_at(row)) throw error->with("'" + column.field.name + "'");
  }
  std::shared_ptr<arrow::Array> made = made_array(column, begin, count, *type);
  if (made->type()->Equals(*type)) return made;
  // Dates and times have the layout of integers.
  const auto viewed = made->View(type);
  require(viewed.ok(), "column's values are ", made->type()->ToString(), ", the file has ", type->ToString(),
          ": '", column.field.name, "'");
  return *viewed;
}

}  // namespace trireme::data
#endif
