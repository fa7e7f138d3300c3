// Record batches as rows. Arrow's own headers stay in sources: its types are only named here.
#pragma once

#include <memory>
#include <vector>

#include "data/rows/rows.h"

namespace arrow {
class MemoryPool;
class RecordBatch;
class Schema;
}  // namespace arrow

namespace trireme::data {

/// Fields of a file's schema, those of structs as "image.bytes".
std::vector<Field> flat_fields(const arrow::Schema& schema);

/// The named fields of a batch. `pool` lives as long as the values.
Rows rows_of_batch(const std::shared_ptr<arrow::RecordBatch>& batch, const std::vector<Field>& fields,
                   const std::shared_ptr<const arrow::MemoryPool>& pool);

/// One row of a batch's columns that has an error in the place of its values: it has `bytes`, above `most`.
Rows too_long_row(const arrow::Schema& schema, const std::vector<Field>& fields, int64_t bytes, int64_t most);

/// Puts "row N" before errors, N counted from `first`; what a failed row has in other columns is missing too.
void name_rows(Rows& rows, int64_t first);

}  // namespace trireme::data
