// Values of Arrow arrays as texts: JSON where they are lists, maps or structs.
#if TRIREME_ARROW
#include <arrow/api.h>

#include <cmath>
#include <type_traits>

#include "base/error.h"
#include "base/text/base64.h"
#include "base/text/json.h"
#include "data/readers/arrow_values.h"

namespace trireme::data {
namespace {

using arrow::Array;
using arrow::Type;

void append_value(std::string& out, const Array& array, int64_t row);

/// Integers of any width, and what is stored as such.
template <class Numbers>
void append_integer(std::string& out, const Array& array, int64_t row) {
  const auto value = static_cast<const Numbers&>(array).Value(row);
  if constexpr (std::is_same_v<std::decay_t<decltype(value)>, uint64_t>) {
    base::append_json(out, value);
  } else {
    base::append_json(out, static_cast<int64_t>(value));
  }
}

template <class T>
void append_real(std::string& out, T value) {
  if (std::isfinite(value)) {
    base::append_json(out, value);
  } else {
    out += "null";
  }
}

/// False: the type is no number.
bool append_number(std::string& out, const Array& array, int64_t row) {
  switch (array.type_id()) {
    case Type::BOOL:
      out += static_cast<const arrow::BooleanArray&>(array).Value(row) ? "true" : "false";
      break;
    case Type::INT8: append_integer<arrow::Int8Array>(out, array, row); break;
    case Type::UINT8: append_integer<arrow::UInt8Array>(out, array, row); break;
    case Type::INT16: append_integer<arrow::Int16Array>(out, array, row); break;
    case Type::UINT16: append_integer<arrow::UInt16Array>(out, array, row); break;
    case Type::INT32: append_integer<arrow::Int32Array>(out, array, row); break;
    case Type::DATE32: append_integer<arrow::Date32Array>(out, array, row); break;
    case Type::TIME32: append_integer<arrow::Time32Array>(out, array, row); break;
    case Type::UINT32: append_integer<arrow::UInt32Array>(out, array, row); break;
    case Type::INT64: append_integer<arrow::Int64Array>(out, array, row); break;
    case Type::DATE64: append_integer<arrow::Date64Array>(out, array, row); break;
    case Type::TIME64: append_integer<arrow::Time64Array>(out, array, row); break;
    case Type::TIMESTAMP: append_integer<arrow::TimestampArray>(out, array, row); break;
    case Type::DURATION: append_integer<arrow::DurationArray>(out, array, row); break;
    case Type::UINT64: append_integer<arrow::UInt64Array>(out, array, row); break;
    case Type::HALF_FLOAT:
      append_real(out, tensor::f16_bits_to_f32(static_cast<const arrow::HalfFloatArray&>(array).Value(row)));
      break;
    case Type::FLOAT: append_real(out, static_cast<const arrow::FloatArray&>(array).Value(row)); break;
    case Type::DOUBLE: append_real(out, static_cast<const arrow::DoubleArray&>(array).Value(row)); break;
    default: return false;
  }
  return true;
}

void append_items(std::string& out, const Array& items, int64_t begin, int64_t count) {
  out += '[';
  for (int64_t i = begin; i < begin + count; ++i) {
    if (i > begin) out += ',';
    append_value(out, items, i);
  }
  out += ']';
}

template <class Lists>
void append_list(std::string& out, const Array& array, int64_t row) {
  const auto& lists = static_cast<const Lists&>(array);
  append_items(out, *lists.values(), lists.value_offset(row), lists.value_length(row));
}

void append_map(std::string& out, const Array& array, int64_t row) {
  const auto& maps = static_cast<const arrow::MapArray&>(array);
  const Type::type key = maps.keys()->type_id();
  const bool is_object = key == Type::STRING || key == Type::LARGE_STRING || key == Type::STRING_VIEW;
  const int64_t begin = maps.value_offset(row), end = begin + maps.value_length(row);
  out += is_object ? '{' : '[';
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    out += is_object ? "" : "{\"key\":";
    append_value(out, *maps.keys(), i);
    out += is_object ? ":" : ",\"value\":";
    append_value(out, *maps.items(), i);
    out += is_object ? "" : "}";
  }
  out += is_object ? '}' : ']';
}

void append_struct(std::string& out, const Array& array, int64_t row) {
  const auto& parts = static_cast<const arrow::StructArray&>(array);
  out += '{';
  for (int i = 0; i < parts.num_fields(); ++i) {
    if (i > 0) out += ',';
    base::append_json(out, parts.struct_type()->field(i)->name());
    out += ':';
    append_value(out, *parts.field(i), row);
  }
  out += '}';
}

template <class T>
T take_result(arrow::Result<T> result) {
  check_arrow(result.status());
  return std::move(result).ValueUnsafe();
}

/// One of several values, as an array of its own: of a union's types, of a run of equal ones.
std::shared_ptr<Array> chosen_value(const Array& array, int64_t row) {
  std::shared_ptr<arrow::Scalar> value = take_result(array.GetScalar(row));
  if (array.type_id() == Type::RUN_END_ENCODED) {
    value = static_cast<const arrow::RunEndEncodedScalar&>(*value).value;
  } else if (array.type_id() == Type::SPARSE_UNION) {
    const auto& of = static_cast<const arrow::SparseUnionScalar&>(*value);
    value = of.value.at(static_cast<size_t>(of.child_id));
  } else {
    value = static_cast<const arrow::DenseUnionScalar&>(*value).value;
  }
  return take_result(arrow::MakeArrayFromScalar(*value, 1));
}

/// False: the type has no values inside of it.
bool append_nested(std::string& out, const Array& array, int64_t row) {
  switch (array.type_id()) {
    case Type::LIST: append_list<arrow::ListArray>(out, array, row); break;
    case Type::LARGE_LIST: append_list<arrow::LargeListArray>(out, array, row); break;
    case Type::FIXED_SIZE_LIST: append_list<arrow::FixedSizeListArray>(out, array, row); break;
    case Type::LIST_VIEW: append_list<arrow::ListViewArray>(out, array, row); break;
    case Type::LARGE_LIST_VIEW: append_list<arrow::LargeListViewArray>(out, array, row); break;
    case Type::MAP: append_map(out, array, row); break;
    case Type::STRUCT: append_struct(out, array, row); break;
    case Type::SPARSE_UNION:
    case Type::DENSE_UNION:
    case Type::RUN_END_ENCODED: append_value(out, *chosen_value(array, row), 0); break;
    case Type::EXTENSION:
      append_value(out, *static_cast<const arrow::ExtensionArray&>(array).storage(), row);
      break;
    case Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      append_value(out, *coded.dictionary(), coded.GetValueIndex(row));
      break;
    }
    default: return false;
  }
  return true;
}

void append_value(std::string& out, const Array& array, int64_t row) {
  if (array.IsNull(row)) {
    out += "null";
    return;
  }
  if (append_number(out, array, row) || append_nested(out, array, row)) return;
  const std::string text = arrow_text_at(array, row);
  switch (array.type_id()) {
    case Type::BINARY:
    case Type::LARGE_BINARY:
    case Type::BINARY_VIEW:
    case Type::FIXED_SIZE_BINARY: base::append_json(out, base::encode_base64(text)); break;
    case Type::NA: out += "null"; break;
    default: base::append_json(out, text);
  }
}

}  // namespace

bool is_json_type(const arrow::DataType& type) {
  switch (type.id()) {
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST:
    case Type::LIST_VIEW:
    case Type::LARGE_LIST_VIEW:
    case Type::MAP:
    case Type::STRUCT:
    case Type::SPARSE_UNION:
    case Type::DENSE_UNION: return true;
    case Type::RUN_END_ENCODED:
      return is_json_type(*static_cast<const arrow::RunEndEncodedType&>(type).value_type());
    default: return false;
  }
}

std::string arrow_text_at(const Array& array, int64_t row) {
  switch (array.type_id()) {
    case Type::STRING:
    case Type::BINARY: return static_cast<const arrow::BinaryArray&>(array).GetString(row);
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY: return static_cast<const arrow::LargeBinaryArray&>(array).GetString(row);
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW: return static_cast<const arrow::BinaryViewArray&>(array).GetString(row);
    case Type::FIXED_SIZE_BINARY:
      return std::string(static_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(row));
    case Type::RUN_END_ENCODED: return arrow_text_at(*chosen_value(array, row), 0);
    default:
      if (is_json_type(*array.type())) return arrow_json_at(array, row);
      return take_result(array.GetScalar(row))->ToString();  // decimals, intervals
  }
}

std::string arrow_json_at(const Array& array, int64_t row) {
  std::string out;
  append_value(out, array, row);
  return out;
}

}  // namespace trireme::data
#endif
