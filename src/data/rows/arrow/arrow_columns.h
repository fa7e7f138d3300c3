// Columns from Arrow arrays and back. Arrow's own headers stay in sources: its types are only named here.
#pragma once

#include <memory>
#include <vector>

#include "data/rows/original.h"
#include "data/rows/rows.h"

namespace arrow {
class Array;
class DataType;
}  // namespace arrow

namespace trireme::data {

using PoolHandle = std::shared_ptr<const void>;  ///< an arrow::MemoryPool

/// The array as a column's original, and back. `pool`, that of its memory, lives as long as the original;
/// null: the default one, which always lives.
Original original_of(std::shared_ptr<arrow::Array> array, PoolHandle pool);
std::shared_ptr<arrow::Array> array_of(const Original& original);

/// The pools of an original's memory. What the library makes of the array may share that memory (the texts of
/// views, dictionaries), so it must not outlive them.
const std::vector<PoolHandle>& pools_of(const Original& original);

/// All rows of an array. A value that is no tensor of the field (a null among a list's items, lists of
/// different lengths where one is wanted) is missing, and Column::errors says why.
Column column_of(const Field& field, const Original& original);

/// The type that a file has for a field: scalars are primitive, a dimension of known size is a list of fixed
/// size, others lists; bf16, which Arrow lacks, is widened to f32. Throws unsupported for types of less than
/// a byte and 8-bit floats.
std::shared_ptr<arrow::DataType> arrow_type_of(const Field& field);

/// Rows [begin, begin + count) as an array of that type: the original where the column has one of it, else
/// made of the values. Texts are UTF-8: ill-formed sequences become U+FFFD. Throws invalid_argument where the
/// type cannot be made of them, or where only the original has a value.
std::shared_ptr<arrow::Array> arrow_array_of(const Column& column, int64_t begin, int64_t count,
                                             const std::shared_ptr<arrow::DataType>& type);

}  // namespace trireme::data
