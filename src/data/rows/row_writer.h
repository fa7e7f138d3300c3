// Writes rows into one file. The same rows give the same bytes, in whatever pieces they come.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/rows/rows.h"
#include "data/store/store.h"

namespace trireme::data {

/// One thread.
class RowWriter {
 public:
  virtual ~RowWriter() = default;
  /// Columns as the writer was made with, in that order; rows without errors. Throws invalid_argument for
  /// what the format cannot hold (an array: a missing value): then the file is given up.
  virtual void write(const Rows& rows) = 0;
  /// Ends the file's content; the store's file is committed by whoever opened it.
  virtual void finish() = 0;
};

struct RowWriterOptions {
  /// "parquet", "arrow", "jsonl", "csv", "npy"; "openai": JSON lines whose texts "response" and "error" are
  /// objects already.
  std::string format;
  std::string compression =
      {};  ///< of Parquet and Arrow: "", "zstd", "snappy", "gzip", "lz4"; of lines: "", "gzip"
  /// Kept in the file where the format has a place for it: model, version, precision, hash.
  std::vector<std::pair<std::string, std::string>> metadata = {};
  /// A column of the input that is carried through and whose exact type is wanted: any rows of it.
  const Rows* carried = nullptr;
};

/// Whether files of a format hold NaN and infinity as such: those of JSON have null in their places.
bool holds_non_finite(std::string_view format);

/// The ending of a format's names, with its dot: ".parquet", ".jsonl.gz".
std::string file_ending(const RowWriterOptions& options);

/// `to` outlives the writer. Of Parquet and Arrow a dimension of known size is a list of fixed size, others
/// are lists; bf16 is widened to f32; groups end after 65,536 rows or 32 MiB. Rows of an array wait in a
/// temporary file. Throws unsupported for a format this build does not write, or for fields that it cannot
/// hold (NPY: exactly one tensor).
std::unique_ptr<RowWriter> make_row_writer(StoreWriter& to, const std::vector<Field>& fields,
                                           const RowWriterOptions& options);

}  // namespace trireme::data
