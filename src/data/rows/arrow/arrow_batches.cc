// Converts record batches to rows.
#if TRIREME_ARROW
#include "data/rows/arrow/arrow_batches.h"

#include <arrow/api.h>

#include "base/error.h"
#include "data/readers/arrow_values.h"
#include "data/rows/arrow/arrow_columns.h"

namespace trireme::data {

std::vector<Field> flat_fields(const arrow::Schema& schema) {
  // An empty table is flattened in the same way as tables with rows.
  const auto empty = arrow::Table::MakeEmpty(std::make_shared<arrow::Schema>(schema));
  check_arrow(empty.status());
  const std::shared_ptr<arrow::Table> flat = flat_table(*empty);
  std::vector<Field> fields;
  for (const auto& field : flat->schema()->fields()) fields.push_back(field_of_arrow(*field));
  return fields;
}

Rows rows_of_batch(const std::shared_ptr<arrow::RecordBatch>& batch, const std::vector<Field>& fields,
                   const std::shared_ptr<const arrow::MemoryPool>& pool) {
  const auto table = arrow::Table::FromRecordBatches(batch->schema(), {batch});
  check_arrow(table.status());
  const std::shared_ptr<arrow::Table> flat = flat_table(*table);
  Rows rows;
  rows.count = batch->num_rows();
  for (const Field& field : fields) {
    const std::shared_ptr<arrow::ChunkedArray> values = flat->GetColumnByName(field.name);
    base::require(values != nullptr && values->num_chunks() == 1, "file is damaged: no values of column '",
                  field.name, "'");
    rows.columns.push_back(column_of(field, original_of(values->chunk(0), pool)));
  }
  return rows;
}

Rows too_long_row(const arrow::Schema& schema, const std::vector<Field>& fields, int64_t bytes,
                  int64_t most) {
  arrow::ArrayVector nothing;
  for (const auto& field : schema.fields()) {
    auto column = arrow::MakeArrayOfNull(field->type(), 1);
    check_arrow(column.status());
    nothing.push_back(std::move(column).ValueUnsafe());
  }
  const auto batch = arrow::RecordBatch::Make(std::make_shared<arrow::Schema>(schema), 1, std::move(nothing));
  Rows rows = rows_of_batch(batch, fields, nullptr);
  rows.errors.assign(
      1, base::Error(base::ErrorCode::invalid_argument,
                     base::concat("row of ", bytes, " bytes is longer than the limit of ", most)));
  return rows;
}

void name_rows(Rows& rows, int64_t first) {
  for (int64_t i = 0; !rows.errors.empty() && i < rows.count; ++i) {
    std::optional<base::Error>& error = rows.errors[static_cast<size_t>(i)];
    if (!error) continue;
    error = error->with(base::concat("row ", first + i));
    for (Column& column : rows.columns) {
      column.is_missing.resize(static_cast<size_t>(rows.count));
      column.is_missing[static_cast<size_t>(i)] = true;
    }
  }
}

}  // namespace trireme::data
#endif
