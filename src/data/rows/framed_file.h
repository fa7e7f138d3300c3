// Files whose rows stand one after another as lines, records or members: cut by one walk, read from any row
// on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/rows/byte_stream.h"
#include "data/rows/parked.h"
#include "data/rows/row_formats.h"
#include "data/rows/rows_builder.h"

namespace trireme::data {

/// A member of a row of several.
struct FramePart {
  std::string name;
  std::string content;
};

/// One row as it stands in the file.
struct RowFrame {
  uint64_t begin = 0, end = 0;
  std::string_view content = {};           ///< valid until the next row
  std::string key = {};                    ///< of rows that have one: a sample's name in an archive
  std::vector<FramePart> parts = {};       ///< of rows that are several members
  std::optional<base::Error> damage = {};  ///< of this row alone
};

/// Goes from row to row. One thread.
class RowWalk {
 public:
  explicit RowWalk(std::unique_ptr<ByteStream> bytes) : bytes_(std::move(bytes)) {}
  virtual ~RowWalk() = default;
  /// False: there is no more row. Without `with_content` a row's content need not be read. Throws
  /// invalid_argument for damage that loses the place of what follows.
  virtual bool next(RowFrame& frame, bool with_content) = 0;
  /// Of the bytes passed since the last restart, in formats that have no sums of their own; else 0.
  uint32_t crc() const { return crc_; }
  void restart_crc() { crc_ = 0; }
  /// No row begins at `end` or behind it: the walk need not look there to know that one has ended.
  void end_at(uint64_t end) { end_ = end; }
  /// The bytes from behind the last row on, or a little further: for another walk.
  std::unique_ptr<ByteStream> release() { return std::move(bytes_); }

 protected:
  std::unique_ptr<ByteStream> bytes_;
  uint32_t crc_ = 0;
  uint64_t end_ = UINT64_MAX;
};

/// Makes values of frames. One thread.
class RowDecoder {
 public:
  virtual ~RowDecoder() = default;
  /// Adds the values of one row; whoever calls ends the row. Throws what is wrong with it.
  virtual void decode(const RowFrame& frame, RowsBuilder& rows) = 0;
};

/// Of packed files, which can be unpacked only from their beginning.
using ParkedBytes = Parked<std::unique_ptr<ByteStream>>;

class FramedFile : public RowFile {
 public:
  std::string_view format() const override { return format_; }
  const std::vector<Field>& fields() const override { return fields_; }
  uint64_t content_id() const override { return content_id_of(*source_.file); }
  void cut(int64_t rows, const std::function<void(const RowSpan&)>& take) const override;
  std::unique_ptr<RowStream> open(const RowSpan& span,
                                  const std::vector<std::string>& columns) const override;

  virtual std::unique_ptr<RowWalk> walk(std::unique_ptr<ByteStream> bytes) const = 0;
  virtual std::unique_ptr<RowDecoder> decoder(ColumnChoice choice) const = 0;

 protected:
  FramedFile(std::string format, RowSource source);
  /// The first rows, for learning the fields.
  std::unique_ptr<RowWalk> walk_from(uint64_t begin) const;
  const RowSource& source() const { return source_; }
  bool is_packed() const { return packing_ != Packing::none; }
  /// Where the text begins: behind its byte order mark.
  uint64_t text_begin() const;

  std::vector<Field> fields_;  // set by constructors
  uint64_t first_byte_ = 0;    // of the first row

 private:
  std::string format_;
  RowSource source_;
  Packing packing_;
  std::shared_ptr<ParkedBytes> parked_ = std::make_shared<ParkedBytes>(8);
};

}  // namespace trireme::data
