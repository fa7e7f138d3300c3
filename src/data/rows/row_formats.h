// What opens each format, and what all of them ask of a file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/rows/row_file.h"

namespace trireme::data {

inline constexpr int64_t kLearnedRows = 64;              ///< read to learn the fields
inline constexpr size_t kPieceBytes = size_t{32} << 20;  ///< of rows that are given at once
/// Packed well, a file of constant columns has some hundred rows for each of its bytes; work and the spans of
/// a file follow its rows, so a count that no bytes pay for is refused.
inline constexpr int64_t kMostRowsOfByte = int64_t{1} << 16;
inline constexpr size_t kNoPlace = static_cast<size_t>(-1);

/// A file that is about to be opened as rows.
struct RowSource {
  std::shared_ptr<const Store> store;
  std::string path;
  std::shared_ptr<const StoreFile> file;  ///< null for directories
  RowFileOptions options;
};

std::unique_ptr<RowFile> open_jsonl_rows(RowSource source, bool openai);
std::unique_ptr<RowFile> open_csv_rows(RowSource source);
std::unique_ptr<RowFile> open_tfrecord_rows(RowSource source);
std::unique_ptr<RowFile> open_webdataset_rows(RowSource source);
std::unique_ptr<RowFile> open_npy_rows(RowSource source);
std::unique_ptr<RowFile> open_image_rows(RowSource source);
/// Throw unsupported in builds without Arrow.
std::unique_ptr<RowFile> open_parquet_rows(RowSource source);
std::unique_ptr<RowFile> open_arrow_rows(RowSource source);

/// Which fields of a file are read, and where each goes.
struct ColumnChoice {
  std::vector<Field> fields;     ///< in the order that was asked for
  std::vector<size_t> place_of;  ///< by the file's fields; kNoPlace: not wanted
};

/// Throws not_found for a column that is not there, invalid_argument for one that is asked for twice.
ColumnChoice choose_columns(const std::vector<Field>& fields, const std::vector<std::string>& columns);

/// Cuts rows [0, total) into spans that need no other bounds.
void cut_evenly(int64_t total, int64_t rows, const std::function<void(const RowSpan&)>& take);

/// Throws invalid_argument for more rows than a file of so many bytes may have (kMostRowsOfByte).
void check_row_count(int64_t rows, int64_t file_bytes);

/// Throws invalid_argument unless the span's rows lie in [0, total).
void check_span(const RowSpan& span, int64_t total);

}  // namespace trireme::data
