// Creates the writer for a format.
#include "data/rows/row_writer.h"

#include <algorithm>

#include "base/error.h"
#include "data/rows/writers.h"

namespace trireme::data {
namespace {

bool is_lines(std::string_view format) { return format == "jsonl" || format == "csv" || format == "openai"; }

void check_options(const RowWriterOptions& options) {
  const std::string& c = options.compression;
  const bool is_arrow = options.format == "parquet" || options.format == "arrow";
  const bool is_known =
      c.empty() || (is_lines(options.format) && c == "gzip") ||
      (options.format == "parquet" && (c == "zstd" || c == "snappy" || c == "gzip" || c == "lz4")) ||
      (options.format == "arrow" && (c == "zstd" || c == "lz4"));
  if (is_known) return;
  const std::string_view there = options.format == "parquet" ? "zstd, snappy, gzip, lz4"
                                 : is_arrow                  ? "zstd, lz4"
                                 : is_lines(options.format)  ? "gzip"
                                                             : "none";
  base::fail_unsupported("no compression '", c, "' in files of format ", options.format, "; there is ",
                         there);
}

}  // namespace

bool holds_non_finite(std::string_view format) { return format != "jsonl" && format != "openai"; }

std::string file_ending(const RowWriterOptions& options) {
  const bool is_packed = is_lines(options.format) && options.compression == "gzip";
  return "." + (options.format == "openai" ? "jsonl" : options.format) + (is_packed ? ".gz" : "");
}

std::unique_ptr<RowWriter> make_row_writer(StoreWriter& to, const std::vector<Field>& fields,
                                           const RowWriterOptions& options) {
  base::require(!fields.empty(), "a file of rows needs at least one column");
  for (size_t i = 0; i < fields.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      base::require(fields[i].name != fields[k].name, "two columns have one name: '", fields[i].name, "'");
    }
  }
  const std::string& format = options.format;
  if (format == "parquet" || format == "arrow") {
    check_options(options);
    return make_arrow_writer(to, fields, options);
  }
  if (is_lines(format) || format == "npy") check_options(options);
  if (format == "jsonl" || format == "openai") return make_jsonl_writer(to, fields, options);
  if (format == "csv") return make_csv_writer(to, fields, options);
  if (format == "npy") return make_npy_writer(to, fields);
  base::fail_unsupported("no writer for files of format '", format,
                         "'; there are parquet, arrow, jsonl, csv, npy, openai");
}

void check_rows(const Rows& rows, const std::vector<Field>& fields) {
  base::check(rows.columns.size() == fields.size(), "rows of ", rows.columns.size(),
              " columns for a file of ", fields.size());
  base::check(rows.errors.empty(), "rows with errors are not written");
  for (size_t c = 0; c < fields.size(); ++c) {
    const Column& column = rows.columns[c];
    const Field& field = fields[c];
    base::check(column.field.name == field.name && column.field.kind == field.kind, "column '",
                column.field.name, "' for '", field.name, "' of the file");
    if (field.kind != FieldKind::tensor) {
      base::check(static_cast<int64_t>(column.strings.size()) == rows.count, "column has ",
                  column.strings.size(), " texts in ", rows.count, " rows: '", field.name, "'");
      continue;
    }
    base::require(column.field.dtype == field.dtype, "column is of ", tensor::name_of(column.field.dtype),
                  ", the file of ", tensor::name_of(field.dtype), ": '", field.name, "'");
    const bool has_all = column.numbers.defined() ? column.numbers.dims().at(0) == rows.count
                                                  : static_cast<int64_t>(column.ragged.size()) == rows.count;
    base::check(has_all, "column has not a tensor for each of ", rows.count, " rows: '", field.name, "'");
  }
}

}  // namespace trireme::data
