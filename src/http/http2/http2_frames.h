// Where bytes of an HTTP/2 connection stand among its frames, and views that receive bodies where they
// belong.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::http {

/// Where the next byte stands, followed beside nghttp2. Only lengths: what frames mean is nghttp2's business.
class FramePlace {
 public:
  void pass(std::string_view bytes);
  bool is_between() const { return preface_left_ == 0 && head_bytes_ == 0 && payload_left_ == 0; }
  /// The stream whose body the frame here, or the last one, carries without padding; 0: neither does.
  int32_t body_stream() const;
  /// Of the frame here, or the last one: its payload, and what is still to come of it.
  uint32_t frame_bytes() const { return uint32_t{head_[0]} << 16 | uint32_t{head_[1]} << 8 | head_[2]; }
  uint32_t payload_left() const { return payload_left_; }

 private:
  std::array<unsigned char, 9> head_;
  uint32_t head_bytes_ = 0, payload_left_ = 0;
  size_t preface_left_ = 24;
};

/// Views for one read inside the body of a large message: the bytes of the body go to their place, the
/// frames' heads between them here. Senders cut a message into frames of one length, so the places of the
/// heads to come are guessed; where a guess fails, hand_on() sees it by the head before.
class BodyViews {
 public:
  /// Fills `views`, of which the last one is `spill`; gives their number. 0: the rest of the body, `room`, is
  /// not worth it.
  size_t plan(const FramePlace& place, std::span<char> room, std::span<iovec> views, std::span<char> spill);
  void forget() { pieces_.clear(); }
  /// Gives `feed`, which moves `place` on, the `bytes` that lie in the views, in order; false once it gives
  /// false.
  bool hand_on(const FramePlace& place, size_t bytes, const std::function<bool(std::string_view)>& feed);

 private:
  struct Piece {
    char* at;
    size_t bytes;
    bool is_head;
  };
  static constexpr size_t kMaxHeads = 64;

  std::vector<Piece> pieces_;
  std::array<char, 9 * kMaxHeads> heads_;
  std::string gathered_;
};

}  // namespace trireme::http
