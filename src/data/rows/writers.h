// What makes the writer of each format.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "data/rows/row_writer.h"

namespace trireme::data {

std::unique_ptr<RowWriter> make_jsonl_writer(StoreWriter& to, const std::vector<Field>& fields,
                                             const RowWriterOptions& options);
std::unique_ptr<RowWriter> make_csv_writer(StoreWriter& to, const std::vector<Field>& fields,
                                           const RowWriterOptions& options);
std::unique_ptr<RowWriter> make_npy_writer(StoreWriter& to, const std::vector<Field>& fields);
/// Parquet and Arrow. Throws unsupported in builds without Arrow.
std::unique_ptr<RowWriter> make_arrow_writer(StoreWriter& to, const std::vector<Field>& fields,
                                             const RowWriterOptions& options);

/// Throws internal unless the rows have these columns and no errors; invalid_argument where a value is not of
/// its column's type or shape.
void check_rows(const Rows& rows, const std::vector<Field>& fields);

}  // namespace trireme::data
