// Files of rows that are read in spans: no state grows with the rows of a file while a span of it is read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/rows/rows.h"
#include "data/store/store.h"

namespace trireme::data {

/// Neighbouring rows of one file that are read without the others.
struct RowSpan {
  int64_t first_row = 0;  ///< of the file
  int64_t rows = 0;
  int64_t begin = 0, end = 0;  ///< of the format: bytes of lines, records and members, numbers of row groups…
  uint32_t crc = 0;            ///< CRC-32C of the bytes, where cutting read them; 0: it did not
  bool operator==(const RowSpan&) const = default;
};

/// The rows of one span, in order. One thread; its file outlives it.
class RowStream {
 public:
  virtual ~RowStream() = default;
  /// The next rows, at most `most` and fewer where they are large; false: there are none. A row that is
  /// damaged by itself has an error of its own; damage that loses the place of the rows behind it throws
  /// invalid_argument, a store that cannot be reached `unavailable`, and bytes that are not those which were
  /// cut (RowSpan::crc) invalid_argument.
  virtual bool next(int64_t most, Rows& out) = 0;
};

/// One file, or one directory that is a file of rows (a folder of images). Reading is safe from several
/// threads.
class RowFile {
 public:
  virtual ~RowFile() = default;
  virtual std::string_view format() const = 0;
  virtual const std::vector<Field>& fields() const = 0;
  /// Tells the content: equal for equal bytes, whatever the name and the time. May read only samples of a
  /// large file, always its size, head and tail, and a file's index or footer whole.
  virtual uint64_t content_id() const = 0;
  /// Cuts the file into spans of `rows` rows, the last one shorter; a format that can be read only by larger
  /// parts may give up to twice as many. Memory does not grow with the file beyond its own index.
  virtual void cut(int64_t rows, const std::function<void(const RowSpan&)>& take) const = 0;
  /// Reads only `columns`, in that order; none: all. Throws not_found for a column that is not there, naming
  /// those that are.
  virtual std::unique_ptr<RowStream> open(const RowSpan& span,
                                          const std::vector<std::string>& columns) const = 0;
};

struct RowFileOptions {
  std::string format = {};  ///< "parquet", "arrow", "jsonl", "csv", "tfrecord", "webdataset", "npy",
                            ///< "images", "openai"; empty: by the name's ending
  bool csv_header = true;
  char csv_delimiter = ',';  ///< of names that end in .tsv: a tab unless another one is asked for
  int64_t most_row_bytes = int64_t{64} << 20;  ///< a longer row has an error instead of a value
  std::vector<Field> partitions =
      {};  ///< columns that directories name (partition_fields); none: no such columns
};

/// Lines, records and members may be packed by gzip or zstd: then spans are places of the unpacked bytes, and
/// reading one unpacks what stands before it, unless the span before was read to its end. Throws not_found,
/// unsupported for a format that this build does not read, invalid_argument for damage.
std::unique_ptr<RowFile> open_row_file(std::shared_ptr<const Store> store, const std::string& path,
                                       const RowFileOptions& options);

}  // namespace trireme::data
