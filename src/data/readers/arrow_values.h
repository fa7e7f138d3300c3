// Values of Arrow arrays as tensors, texts and bytes. Arrow's own headers stay in sources: its types are only
// named here.
#pragma once

#include <memory>
#include <string>

#include "data/dataset/dataset.h"

namespace arrow {
class Array;
class DataType;
class Field;
class MemoryPool;
class Status;
class Table;
}  // namespace arrow

namespace trireme::data {

/// Whether an arrow::CappedMemoryPool refused memory.
bool exceeds_cap(const arrow::Status& status);

/// Throws exhausted where the machine had no memory, else invalid_argument, unless the status is good.
void check_arrow(const arrow::Status& status);

/// Numbers are tensors [], lists of them at any depth tensors of as many dimensions (of fixed size where the
/// type says so), dates and times their integers; binary is bytes; all else is text, which is JSON for other
/// lists, maps and structs.
Field field_of_arrow(const arrow::Field& from);

/// Rows [begin, begin + count) of an array of numbers, or of lists of them, as one tensor [count, …] or, of
/// one row, without the first dimension. Throws invalid_argument for a null among list items, and for lists
/// of different lengths beside one another. The tensor looks at the array's memory where it can.
tensor::Tensor arrow_tensor(const std::shared_ptr<const arrow::Array>& array, const Field& field,
                            int64_t begin, int64_t count);
tensor::Tensor arrow_tensor_at(const std::shared_ptr<const arrow::Array>& array, const Field& field,
                               int64_t row);

/// A value of text or bytes. Types that are neither are JSON (lists, maps, structs), or printed.
std::string arrow_text_at(const arrow::Array& array, int64_t row);

/// A value as JSON: structs, and maps whose keys are texts, are objects, other maps lists of {"key",
/// "value"}; dates and times are their integers, bytes base64, decimals and the like texts, NaN and infinity
/// null.
std::string arrow_json_at(const arrow::Array& array, int64_t row);

/// Whether arrow_text_at() gives JSON for values of the type.
bool is_json_type(const arrow::DataType& type);

/// Structs as columns of their own, "image.bytes" and "image.path"; dictionaries and extension types as what
/// they stand for, which is memory of `pool`; null: of the default one.
std::shared_ptr<arrow::Table> flat_table(std::shared_ptr<arrow::Table> table,
                                         arrow::MemoryPool* pool = nullptr);

}  // namespace trireme::data
