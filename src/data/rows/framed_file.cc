// Cuts framed files into spans, and reads the spans.
#include "data/rows/framed_file.h"

#include "base/error.h"

namespace trireme::data {
namespace {

using base::require;

class FramedStream : public RowStream {
 public:
  FramedStream(const RowSpan& span, std::unique_ptr<RowWalk> walk, ColumnChoice choice,
               std::unique_ptr<RowDecoder> decoder, std::shared_ptr<ParkedBytes> parked)
      : span_(span),
        walk_(std::move(walk)),
        fields_(std::move(choice.fields)),
        decoder_(std::move(decoder)),
        parked_(std::move(parked)) {}

  bool next(int64_t most, Rows& out) override {
    RowsBuilder rows(fields_);
    while (rows.rows() < most && read_ < span_.rows && rows.bytes() < kPieceBytes) add_row(rows);
    if (rows.rows() == 0) return false;
    if (read_ == span_.rows) finish();
    out = rows.finish();
    return true;
  }

 private:
  void add_row(RowsBuilder& rows) {
    const int64_t row = span_.first_row + read_;
    const bool is_there = walk_->next(frame_, true) && frame_.end <= static_cast<uint64_t>(span_.end);
    require(is_there, "file has changed since it was cut: row ", row, " is not before byte ", span_.end);
    ++read_;
    try {
      if (frame_.damage) throw *frame_.damage;
      decoder_->decode(frame_, rows);
    } catch (const base::Error& e) {
      if (e.code() == base::ErrorCode::internal || e.code() == base::ErrorCode::unavailable) throw;
      rows.fail_row(e.with(base::concat("row ", row)));
      return;
    }
    rows.end_row();
  }

  /// Throws, before the last piece is returned, unless the bytes read are those that were cut.
  void finish() {
    const bool is_same =
        frame_.end == static_cast<uint64_t>(span_.end) && (span_.crc == 0 || walk_->crc() == span_.crc);
    require(is_same, "file has changed since it was cut: rows ", span_.first_row, " to ",
            span_.first_row + span_.rows, " have other bytes");
    if (parked_) {
      std::unique_ptr<ByteStream> bytes = walk_->release();
      const auto at = static_cast<int64_t>(bytes->at());
      parked_->put({}, at, std::move(bytes));
    }
    parked_.reset();
  }

  RowSpan span_;
  std::unique_ptr<RowWalk> walk_;
  std::vector<Field> fields_;
  std::unique_ptr<RowDecoder> decoder_;
  std::shared_ptr<ParkedBytes> parked_;  // null for files that can be read from any byte on
  RowFrame frame_;
  int64_t read_ = 0;
};

}  // namespace

FramedFile::FramedFile(std::string format, RowSource source)
    : format_(std::move(format)), source_(std::move(source)), packing_(packing_of(*source_.file)) {}

std::unique_ptr<RowWalk> FramedFile::walk_from(uint64_t begin) const {
  return walk(open_bytes(source_.file, packing_, begin));
}

uint64_t FramedFile::text_begin() const {
  return open_bytes(source_.file, packing_, 0)->peek(3).starts_with("\xef\xbb\xbf") ? 3 : 0;
}

void FramedFile::cut(int64_t rows, const std::function<void(const RowSpan&)>& take) const {
  require(rows > 0, "rows of a span must be positive: ", rows);
  const std::unique_ptr<RowWalk> walk = walk_from(first_byte_);
  RowFrame frame;
  RowSpan span{.begin = static_cast<int64_t>(first_byte_)};
  const auto give = [&] {
    take(span);
    span = {.first_row = span.first_row + span.rows, .begin = span.end};
    walk->restart_crc();
  };
  while (walk->next(frame, false)) {
    ++span.rows;
    span.end = static_cast<int64_t>(frame.end);
    span.crc = walk->crc();  // blank lines after the last row are not part of the span
    if (span.rows == rows) give();
  }
  if (span.rows > 0) give();
}

std::unique_ptr<RowStream> FramedFile::open(const RowSpan& span,
                                            const std::vector<std::string>& columns) const {
  const bool in_file = span.begin >= 0 && span.end >= span.begin && span.rows >= 0 && span.first_row >= 0;
  require(in_file && (is_packed() || span.end <= source_.file->size()),
          "file has changed since it was cut: span ends at byte ", span.end, ", the file has ",
          source_.file->size());
  ColumnChoice choice = choose_columns(fields_, columns);
  const auto begin = static_cast<uint64_t>(span.begin);
  std::unique_ptr<ByteStream> bytes;
  if (auto parked = is_packed() ? parked_->take({}, 0, span.begin) : std::nullopt) {
    bytes = std::move(*parked);
    bytes->skip(begin - bytes->at());
  } else {
    bytes = open_bytes(source_.file, packing_, begin);
  }
  std::unique_ptr<RowDecoder> decoder = this->decoder(choice);
  std::unique_ptr<RowWalk> rows = walk(std::move(bytes));
  // What is parked must not stand behind the span: the next one could not go on with it.
  if (is_packed()) rows->end_at(static_cast<uint64_t>(span.end));
  return std::make_unique<FramedStream>(span, std::move(rows), std::move(choice), std::move(decoder),
                                        is_packed() ? parked_ : nullptr);
}

}  // namespace trireme::data
