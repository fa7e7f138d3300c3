// Counts how often each token occurs in a text.
#include "engine/decode/seen_counts.h"

#include <utility>

#include "engine/decode/decode_session.h"

namespace trireme::engine {

int32_t* SeenCounts::memory() {
  if (memory_ == nullptr) {
    stream_.synchronize();
    memory_ = device_.allocate(places_ * row_bytes());
  }
  return static_cast<int32_t*>(memory_.get());
}

void SeenCounts::set(int64_t place, const std::vector<int32_t>& counts) {
  if (places_ == 0) return;
  stream_.upload(memory() + place * vocabulary_, counts.data(), row_bytes());
  stream_.synchronize();
}

void SeenCounts::copy(int64_t from, int64_t to) {
  if (memory_ == nullptr) return;
  stream_.copy(memory() + to * vocabulary_, memory() + from * vocabulary_, row_bytes());
}

void SeenCounts::see_ahead(std::span<const SeenAhead> rows, size_t slot) {
  if (places_ == 0) return;
  std::vector<int32_t>& counts = ahead_[slot];
  counts.clear();
  for (const SeenAhead& row : rows) counts.push_back(row.count);
  for (size_t i = 0; i < rows.size(); ++i) {
    copy(rows[i].from, rows[i].to);
    stream_.upload(memory() + rows[i].to * vocabulary_ + rows[i].token, &counts[i], sizeof counts[i]);
  }
}

void CountsAhead::prepare(std::span<const DecodePiece> pieces, size_t slot) {
  std::vector<SeenAhead> ahead;
  size_t row = pieces.size();
  for (size_t p = 0; p < pieces.size(); ++p) {
    const DecodePiece& piece = pieces[p];
    int64_t from = piece.sequence;
    for (size_t i = 1; i <= piece.seen_behind.size(); ++i) {
      const int64_t to = place(i == piece.seen_behind.size() ? p : row + i, slot);
      ahead.push_back({.from = from, .to = to, .token = piece.tokens[i], .count = piece.seen_behind[i - 1]});
      from = to;
    }
    row += static_cast<size_t>(piece.more_rows());
  }
  if (!ahead.empty()) ranks_.see_ahead(std::move(ahead), slot);
}

void CountsAhead::take(int64_t sequence, size_t row, size_t slot) {
  ranks_.copy_seen(place(row, slot), sequence);
}

}  // namespace trireme::engine
