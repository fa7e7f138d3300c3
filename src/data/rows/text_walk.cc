// Walks over the rows of a text.
#include "data/rows/text_walk.h"

#include <algorithm>

#include "base/crc32c.h"
#include "base/error.h"

namespace trireme::data {
namespace {

constexpr size_t kOpen = std::string_view::npos;

std::string_view without_break(std::string_view row, bool is_csv) {
  if (row.ends_with('\n')) row.remove_suffix(1);
  if (is_csv) {
    if (row.ends_with('\r')) row.remove_suffix(1);
    return row;
  }
  while (!row.empty() && (row.back() == '\r' || row.back() == ' ' || row.back() == '\t'))
    row.remove_suffix(1);
  return row;
}

}  // namespace

TextWalk::TextWalk(std::unique_ptr<ByteStream> bytes, std::optional<char> csv_delimiter,
                   int64_t most_row_bytes)
    : RowWalk(std::move(bytes)), most_row_bytes_(static_cast<size_t>(most_row_bytes)) {
  if (csv_delimiter) csv_.emplace(*csv_delimiter);
}

size_t TextWalk::find_end(std::string_view piece) {
  if (csv_) return csv_->find_end(piece);
  const size_t at = piece.find('\n');
  return at == kOpen ? at : at + 1;
}

void TextWalk::take(std::string_view bytes) {
  crc_ = base::crc32c(bytes, crc_);
  bytes_->skip(bytes.size());
}

bool TextWalk::next(RowFrame& frame, bool) {
  frame.damage.reset();
  for (;;) {
    frame.begin = bytes_->at();
    size_t searched = 0, end = kOpen;
    std::string_view have;
    while (end == kOpen) {
      have = bytes_->peek(searched + 1);
      if (have.size() == searched) break;  // the last row has no line break
      end = find_end(have.substr(searched));
      if (end != kOpen) {
        end += searched;
      } else if (have.size() > most_row_bytes_) {
        return pass_long_row(frame);
      }
      searched = have.size();
    }
    if (have.empty()) return false;
    if (end == kOpen) {
      base::require(!csv_ || !csv_->is_quoted(), "CSV quote is not closed: row at byte ", frame.begin);
      end = have.size();
    }
    const std::string_view row = have.substr(0, end);
    frame.content = without_break(row, csv_.has_value());
    take(row);
    frame.end = bytes_->at();
    if (row.size() > most_row_bytes_) refuse_long(frame);
    if (frame.damage || !frame.content.empty()) return true;
  }
}

bool TextWalk::pass_long_row(RowFrame& frame) {
  // All buffered bytes have been searched already.
  take(bytes_->peek(1));
  for (;;) {
    const std::string_view have = bytes_->peek(1);
    if (have.empty()) {
      base::require(!csv_ || !csv_->is_quoted(), "CSV quote is not closed: row at byte ", frame.begin);
      break;
    }
    const size_t end = find_end(have);
    take(have.substr(0, end));
    if (end != kOpen) break;
  }
  frame.end = bytes_->at();
  refuse_long(frame);
  return true;
}

void TextWalk::refuse_long(RowFrame& frame) const {
  frame.content = {};
  frame.damage.emplace(base::ErrorCode::invalid_argument,
                       base::concat("row of ", frame.end - frame.begin, " bytes at byte ", frame.begin,
                                    " is longer than the limit of ", most_row_bytes_));
}

}  // namespace trireme::data
