// HTTP/2 of one connection, apart from its socket: received bytes become streams' events, answers become
// bytes.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/message.h"

struct nghttp2_session;

namespace trireme::http {

class Http2Memory;
class Http2Session;
class Output;

struct Http2Limits {
  uint32_t max_streams = 1024;                  // open at once, told to the client
  uint32_t stream_window_bytes = 4u << 20;      // what a client may send ahead on a stream
  int32_t connection_window_bytes = 32 << 20;   // and on all of them
  uint32_t max_frame_bytes = 1u << 20;          // of a received frame
  uint32_t max_field_bytes = 16u << 10;         // of a request's header fields, 32 for each besides its text
  uint64_t resets_at_once = 10'000;             // RST_STREAM frames before the connection is ended,
  uint64_t resets_per_second = 1'000;           // and how fast they are forgiven
  size_t max_unsent_bytes = size_t{256} << 20;  // of answers; with more, new streams are refused
  int ping_strikes = 2;                         // pings too early that are forgiven
  int64_t ping_interval_ns = 300'000'000'000;   // between pings without an answer from us in between,
  int64_t idle_ping_interval_ns = 7'200'000'000'000;  // and without a stream
  int64_t silence_ns = 30'000'000'000;                // of a client within a message; then its call ends
  int64_t unread_ns = 30'000'000'000;  // without room for a finished answer; then it is dropped
};

using Http2Field = std::pair<std::string_view, std::string_view>;
using Http2Fields = std::vector<std::pair<std::string, std::string>>;

/// One stream as what answers it sees it. All calls come on the session's thread, on_close() last.
class Http2Stream {
 public:
  virtual ~Http2Stream() = default;
  virtual void on_field(std::string_view name, std::string_view value) = 0;
  /// `fits`: false if the fields were too many or too long and were left out.
  virtual void on_fields_end(bool fits) = 0;
  /// Where the next bytes of the body should lie; empty: anywhere. Stays until on_data().
  virtual std::span<char> room() = 0;
  /// Bytes of the body, maybe where room() is already.
  virtual void on_data(std::string_view bytes) = 0;
  /// The client has sent all it wants to.
  virtual void on_end() = 0;
  virtual void on_close() = 0;
  /// So many bytes of the answer's body have left by now.
  virtual void on_sent(uint64_t /*bytes*/) {}
  /// Called now and then: deadlines are looked at.
  virtual void on_tick(int64_t /*now_ns*/) {}
  /// The server is about to end.
  virtual void on_drain() {}

 private:
  friend class Http2Session;
  int32_t id_ = 0;
  size_t at_ = 0;  // place in the session's list
  std::deque<BodyPart> unsent_;
  size_t front_sent_ = 0, unsent_bytes_ = 0;
  uint64_t sent_bytes_ = 0;
  Http2Fields trailers_;
  size_t field_bytes_ = 0, held_bytes_ = 0;
  int64_t shut_ns_ = 0;  // since then no byte of the finished answer may leave; 0: it may
  uint64_t shut_at_ = 0;
  bool has_begun_ = false, has_ended_ = false;  // the client's side
  bool is_finished_ = false, is_deferred_ = false, is_held_ = false;
};

/// Who owns a session.
class Http2Owner {
 public:
  virtual ~Http2Owner() = default;
  virtual std::shared_ptr<Http2Stream> open_stream() = 0;
  /// Something waits to be sent. Called often.
  virtual void on_output() = 0;
};

/// Single-threaded; frames, header compression and flow control are nghttp2's.
class Http2Session {
 public:
  Http2Session(const Http2Limits& limits, Http2Owner& owner);
  /// `memory` is what nghttp2 uses.
  Http2Session(const Http2Limits& limits, Http2Owner& owner, std::unique_ptr<Http2Memory> memory);
  ~Http2Session();
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  /// Takes all bytes; false: the connection cannot go on (what send() gives is still worth sending).
  bool receive(std::string_view bytes, int64_t now_ns);
  /// Inside the body of a large message: views to fill in one call, where the bytes of the body go to their
  /// place and the frames' heads between them to the session's. The last one is `spill`. 0: read and
  /// receive() instead.
  size_t scatter(std::span<iovec> views, std::span<char> spill);
  /// So many bytes lie in scatter()'s views.
  bool receive_scattered(size_t bytes, int64_t now_ns);
  /// Bytes that the message being received misses and that the client may send without being told more; 0:
  /// none.
  size_t awaited_bytes() const;

  /// Moves frames to `out` until nothing waits or `out` has `most_bytes`. `copies`: no part is queued as a
  /// view.
  void send(Output& out, size_t most_bytes, bool copies);
  /// Nothing more can be received or sent.
  bool is_over() const;
  /// Something failed halfway, memory for example: nothing reaches nghttp2 any more.
  bool is_lost() const;
  size_t streams() const { return streams_.size(); }
  bool has_preface() const { return has_preface_; }
  const std::vector<std::shared_ptr<Http2Stream>>& open_streams() const { return streams_; }

  // For streams that are open; after on_close() none of these may be called.
  /// Answers' fields; the whole answer if `is_end`, else write() and finish() follow.
  void respond(Http2Stream& stream, std::span<const Http2Field> fields, bool is_end);
  void write(Http2Stream& stream, BodyPart part);
  /// Ends the answer. A client that still sends is told that it need not.
  void finish(Http2Stream& stream, Http2Fields trailers);
  void reset(Http2Stream& stream, uint32_t code);
  /// While held, the client may fill the stream's window and no more.
  void hold(Http2Stream& stream, bool on);

  /// Resets streams whose client keeps the window of a finished answer shut for unread_ns, or `most_ns` if
  /// that is less. Called now and then.
  void drop_unread(int64_t now_ns, int64_t most_ns = INT64_MAX);
  /// Nothing has come for so long that a message begun is given up.
  bool is_silent(int64_t now_ns) const { return now_ns > now_ns_ + limits_.silence_ns; }
  /// Asks whether the client is there; last_receive_ns() tells.
  void ping();
  int64_t last_receive_ns() const { return now_ns_; }
  /// First that streams should go elsewhere, then that none is taken any more.
  void announce_end();
  void refuse_streams();
  /// Forgets all streams.
  void cut_streams();

 private:
  struct Callbacks;
  /// Where the next byte stands among frames, followed beside nghttp2.
  struct Place {
    std::array<unsigned char, 9> head;
    uint32_t head_bytes = 0, payload_left = 0;
    size_t preface_left = 24;
    void pass(std::string_view bytes);
    bool is_between() const { return preface_left == 0 && head_bytes == 0 && payload_left == 0; }
    /// The stream whose body the frame here, or the last one, carries without padding; 0: neither does.
    int32_t body_stream() const;
    uint32_t length() const { return uint32_t{head[0]} << 16 | uint32_t{head[1]} << 8 | head[2]; }
  };
  struct Piece {
    char* at;
    size_t bytes;
    bool is_head;
  };
  static constexpr size_t kMaxHeads = 64;

  bool feed(std::string_view bytes);
  bool receive_pieces(size_t bytes);
  void consume(int32_t id, size_t bytes, bool is_held);
  void settle_windows();
  void on_ping(int64_t now_ns);
  Http2Stream* stream_of(int32_t id) const;
  void resume(Http2Stream& stream);
  void emit(Http2Stream& stream, const uint8_t* head, size_t bytes);
  void forget(Http2Stream& stream);

  Http2Limits limits_;
  Http2Owner& owner_;
  std::unique_ptr<Http2Memory> memory_;
  nghttp2_session* session_ = nullptr;  // in memory_, with which it ends
  std::vector<std::shared_ptr<Http2Stream>> streams_;
  Place place_;
  std::vector<Piece> pieces_;  // of the last scatter()
  std::array<char, 9 * kMaxHeads> heads_;
  std::string gathered_;
  Output* out_ = nullptr;  // during send()
  // Bytes of bodies that windows are to be opened for, of all streams and of the last one.
  size_t consumed_bytes_ = 0, stream_consumed_bytes_ = 0;
  int32_t consumed_id_ = 0;
  bool copies_ = false, is_lost_ = false, has_preface_ = false;
  bool is_broken_ = false;   // takes no more, but may still have to say why
  size_t unsent_bytes_ = 0;  // of all streams
  int64_t now_ns_ = 0, last_ping_ns_ = 0;
  int strikes_ = 0;
};

}  // namespace trireme::http
