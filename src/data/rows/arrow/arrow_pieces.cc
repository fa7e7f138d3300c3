// Counts the bytes of the values of record batches before they are decoded.
#if TRIREME_ARROW
#include "data/rows/arrow/arrow_pieces.h"

#include <arrow/api.h>

#include <algorithm>

#include "base/error.h"
#include "data/rows/row_formats.h"

namespace trireme::data {

namespace {

constexpr int64_t kMostPieceRows = int64_t{1} << 16;
constexpr int64_t kValueBytes = 40;  // beside its own bytes: a std::string, and the mark of a missing value
constexpr int64_t kNullBytes = 8;    // of a null among the items of a list, which is printed
constexpr int64_t kFreePoolBytes = int64_t{512} << 20;  // what writers make of a small file: its largest page
constexpr int64_t kPoolPerByte = 4;                     // what texts are packed to, and room to build columns

/// Rows [begin, begin + count) of an array. Stops counting above `limit`.
int64_t value_bytes(const arrow::Array& array, int64_t begin, int64_t count, int64_t limit);

/// The sum over rows, each of which `bytes_of` counts.
template <class BytesOf>
int64_t sum_of_rows(int64_t begin, int64_t count, int64_t limit, const BytesOf& bytes_of) {
  int64_t sum = 0;
  for (int64_t i = begin; i < begin + count && sum <= limit; ++i) sum += bytes_of(i, limit - sum);
  return sum;
}

template <class Texts>
int64_t text_bytes(const arrow::Array& array, int64_t begin, int64_t count) {
  const auto& texts = static_cast<const Texts&>(array);
  return count == 0 ? 0 : texts.value_offset(begin + count) - texts.value_offset(begin);
}

template <class Lists>
int64_t list_bytes(const arrow::Array& array, int64_t begin, int64_t count, int64_t limit) {
  const auto& lists = static_cast<const Lists&>(array);
  if (count == 0) return 0;
  const int64_t first = lists.value_offset(begin);
  return value_bytes(*lists.values(), first, lists.value_offset(begin + count) - first, limit);
}

template <class Lists>
int64_t list_view_bytes(const arrow::Array& array, int64_t begin, int64_t count, int64_t limit) {
  const auto& lists = static_cast<const Lists&>(array);
  return sum_of_rows(begin, count, limit, [&](int64_t i, int64_t left) {
    return value_bytes(*lists.values(), lists.value_offset(i), lists.value_length(i), left);
  });
}

int64_t buffer_bytes(const arrow::ArrayData& data) {
  int64_t bytes = data.dictionary == nullptr ? 0 : buffer_bytes(*data.dictionary);
  for (const auto& buffer : data.buffers) bytes += buffer == nullptr ? 0 : buffer->size();
  for (const auto& child : data.child_data) bytes += buffer_bytes(*child);
  return bytes;
}

int64_t struct_bytes(const arrow::Array& array, int64_t begin, int64_t count, int64_t limit) {
  const auto& parts = static_cast<const arrow::StructArray&>(array);
  // Among the items of a list it is printed with the names of its fields.
  const int64_t printed = count * static_cast<int64_t>(array.type()->ToString().size());
  return printed + sum_of_rows(0, parts.num_fields(), limit, [&](int64_t i, int64_t left) {
           return value_bytes(*parts.field(static_cast<int>(i)), begin, count, left);
         });
}

int64_t coded_bytes(const arrow::Array& array, int64_t begin, int64_t count, int64_t limit) {
  const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
  return sum_of_rows(begin, count, limit, [&](int64_t i, int64_t left) {
    return coded.IsNull(i) ? 0 : value_bytes(*coded.dictionary(), coded.GetValueIndex(i), 1, left);
  });
}

int64_t value_bytes(const arrow::Array& array, int64_t begin, int64_t count, int64_t limit) {
  switch (array.type_id()) {
    case arrow::Type::NA: return count * kNullBytes;
    case arrow::Type::STRING:
    case arrow::Type::BINARY: return text_bytes<arrow::BinaryArray>(array, begin, count);
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY: return text_bytes<arrow::LargeBinaryArray>(array, begin, count);
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return sum_of_rows(begin, count, limit, [&](int64_t i, int64_t) {
        const auto& texts = static_cast<const arrow::BinaryViewArray&>(array);
        return array.IsNull(i) ? 0 : static_cast<int64_t>(texts.GetView(i).size());
      });
    case arrow::Type::DICTIONARY: return coded_bytes(array, begin, count, limit);
    case arrow::Type::EXTENSION:
      return value_bytes(*static_cast<const arrow::ExtensionArray&>(array).storage(), begin, count, limit);
    case arrow::Type::STRUCT: return struct_bytes(array, begin, count, limit);
    case arrow::Type::MAP:
    case arrow::Type::LIST: return list_bytes<arrow::ListArray>(array, begin, count, limit);
    case arrow::Type::LARGE_LIST: return list_bytes<arrow::LargeListArray>(array, begin, count, limit);
    case arrow::Type::FIXED_SIZE_LIST:
      return list_bytes<arrow::FixedSizeListArray>(array, begin, count, limit);
    case arrow::Type::LIST_VIEW: return list_view_bytes<arrow::ListViewArray>(array, begin, count, limit);
    case arrow::Type::LARGE_LIST_VIEW:
      return list_view_bytes<arrow::LargeListViewArray>(array, begin, count, limit);
    default:
      if (arrow::is_fixed_width(array.type_id())) return (count * array.type()->bit_width() + 7) / 8;
      // A row of a union or of a run of equal values may be any of the values.
      return sum_of_rows(begin, count, limit, [&](int64_t, int64_t) { return buffer_bytes(*array.data()); });
  }
}

int64_t batch_bytes(const arrow::RecordBatch& batch, int64_t begin, int64_t count, int64_t limit) {
  return sum_of_rows(0, batch.num_columns(), limit, [&](int64_t i, int64_t left) {
    return value_bytes(*batch.column(static_cast<int>(i)), begin, count, left);
  });
}

int64_t leaves_of(const arrow::DataType& type) {
  int64_t leaves = type.id() == arrow::Type::STRUCT ? 0 : 1;
  for (const auto& field : type.fields()) leaves += leaves_of(*field->type());
  return leaves;
}

}  // namespace

ArrowPiece first_piece(const arrow::RecordBatch& batch, int64_t most, int64_t most_row_bytes) {
  constexpr auto kMost = static_cast<int64_t>(kPieceBytes);
  int64_t leaves = 1;
  for (const auto& field : batch.schema()->fields()) leaves += leaves_of(*field->type());
  most = std::clamp<int64_t>(kMost / (leaves * kValueBytes), 1, std::min(most, kMostPieceRows));
  // The work is in the order of the rows that are given, whatever the batch has behind them.
  int64_t rows = batch_bytes(batch, 0, most, kMost) <= kMost ? most : 1;
  while (2 * rows < most && batch_bytes(batch, 0, 2 * rows, kMost) <= kMost) rows *= 2;
  if (rows > 1 && batch_bytes(batch, 0, rows, most_row_bytes) <= most_row_bytes) return {rows};
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t bytes = batch_bytes(batch, i, 1, most_row_bytes);
    if (bytes > most_row_bytes) return i == 0 ? ArrowPiece{1, bytes} : ArrowPiece{i};
  }
  return {rows};
}

std::shared_ptr<arrow::MemoryPool> pool_of_file(int64_t file_bytes, int64_t most) {
  const int64_t paid = std::min(file_bytes, most / kPoolPerByte) * kPoolPerByte;
  return std::make_shared<arrow::CappedMemoryPool>(arrow::default_memory_pool(),
                                                   std::min(most, kFreePoolBytes + paid));
}

void check_widths(const std::vector<Field>& fields, int64_t most_row_bytes) {
  for (const Field& field : fields) {
    if (field.kind != FieldKind::tensor || !field.shape.is_static()) continue;
    const int64_t bytes = tensor::bytes_of(field.dtype, tensor::element_count(field.shape.to_dims()));
    base::require(bytes <= most_row_bytes, "rows of ", bytes, " bytes are longer than the limit of ",
                  most_row_bytes, ": '", field.name, "'");
  }
}

}  // namespace trireme::data
#endif
