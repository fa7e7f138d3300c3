// Follows the HTTP/2 frames in a byte stream by their lengths.
#include "http/http2/http2_frames.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstring>

namespace trireme::http {
namespace {

constexpr size_t kScatterBytes = 8192;  // scattering fewer bytes is not worthwhile

}  // namespace

void FramePlace::pass(std::string_view bytes) {
  while (!bytes.empty()) {
    size_t step = 0;
    if (preface_left_ > 0) {
      step = std::min(preface_left_, bytes.size());
      preface_left_ -= step;
    } else if (payload_left_ > 0) {
      step = std::min<size_t>(payload_left_, bytes.size());
      payload_left_ -= static_cast<uint32_t>(step);
    } else {
      step = std::min(head_.size() - head_bytes_, bytes.size());
      std::memcpy(head_.data() + head_bytes_, bytes.data(), step);
      head_bytes_ += static_cast<uint32_t>(step);
      if (head_bytes_ == head_.size()) {
        head_bytes_ = 0;
        payload_left_ = frame_bytes();
      }
    }
    bytes.remove_prefix(step);
  }
}

int32_t FramePlace::body_stream() const {
  if (head_bytes_ > 0 || preface_left_ > 0 || head_[3] != NGHTTP2_DATA ||
      (head_[4] & NGHTTP2_FLAG_PADDED) != 0)
    return 0;
  return static_cast<int32_t>((uint32_t{head_[5]} & 0x7f) << 24 | uint32_t{head_[6]} << 16 |
                              uint32_t{head_[7]} << 8 | head_[8]);
}

size_t BodyViews::plan(const FramePlace& place, std::span<char> room, std::span<iovec> views,
                       std::span<char> spill) {
  if (room.size() < kScatterBytes || views.size() < 4) return 0;
  size_t bytes = std::min<size_t>(room.size(), place.payload_left());
  if (bytes > 0) pieces_.push_back({room.data(), bytes, false});
  room = room.subspan(bytes);
  char* head = heads_.data();
  for (size_t heads = 0; !room.empty() && heads < kMaxHeads && pieces_.size() + 3 <= views.size(); ++heads) {
    bytes = std::min<size_t>(room.size(), place.frame_bytes());
    pieces_.push_back({head, 9, true});
    pieces_.push_back({room.data(), bytes, false});
    head += 9;
    room = room.subspan(bytes);
  }
  pieces_.push_back({spill.data(), spill.size(), false});
  for (size_t i = 0; i < pieces_.size(); ++i) views[i] = {pieces_[i].at, pieces_[i].bytes};
  return pieces_.size();
}

bool BodyViews::hand_on(const FramePlace& place, size_t bytes,
                        const std::function<bool(std::string_view)>& feed) {
  const int32_t id = place.body_stream();
  size_t i = 0;
  for (; i < pieces_.size() && bytes > 0; ++i) {
    const Piece& piece = pieces_[i];
    const size_t here = std::min(piece.bytes, bytes);
    const bool is_spill = i + 1 == pieces_.size();
    const bool is_body = place.body_stream() == id && place.payload_left() >= here;
    if (!is_spill && !(piece.is_head ? place.is_between() : is_body)) break;
    if (!feed({piece.at, here})) return false;
    bytes -= here;
  }
  if (bytes == 0) return true;
  // The remaining bytes were received at places meant for others: copy them out before they are overwritten.
  gathered_.clear();
  for (; bytes > 0; ++i) {
    const size_t here = std::min(pieces_[i].bytes, bytes);
    gathered_.append(pieces_[i].at, here);
    bytes -= here;
  }
  return feed(gathered_);
}

}  // namespace trireme::http
