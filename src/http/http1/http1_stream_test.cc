// Tests streams over HTTP/1.1 to a client that reads slowly, on a loop whose turns the test takes itself.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "http/http1/http1_answer.h"
#include "http/http1/http1_connection.h"
#include "http/loop.h"

namespace trireme::http {
namespace {

/// A connection whose answer is a stream, between a socket with little room and a client that does not read.
class SlowReader {
 public:
  SlowReader() : ends_(new_pair()), client_(ends_.second) {
    shared_.handler = [this](Request&&, Reply reply) { stream = reply.stream(text_response(200, "")); };
    loop_ = std::make_unique<Loop>(shared_);
    loop_->mailbox()->owner.store(std::this_thread::get_id());
    make_room(4096);
    connection_ = std::make_unique<Http1Connection>(*loop_, Descriptor(ends_.first));
    const std::string_view request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    EXPECT_EQ(::send(client_.get(), request.data(), request.size(), 0), ssize_t(request.size()));
    connection_->on_events(EPOLLIN);
    take_turns();
  }

  /// As the loop does for connections that asked for a turn.
  void take_turns() {
    while (std::exchange(connection_->revisit_queued, false)) connection_->advance();
  }
  /// The socket takes much at once, and says so once.
  void becomes_writable() {
    make_room(1 << 20);
    connection_->on_events(EPOLLOUT);
    take_turns();
  }
  std::string received() {
    std::string all, piece(64 << 10, '\0');
    for (ssize_t n = 0; (n = ::recv(client_.get(), piece.data(), piece.size(), 0)) > 0;)
      all.append(piece, 0, static_cast<size_t>(n));
    return all;
  }
  bool is_closed() const { return connection_->closed(); }

  Stream stream;

 private:
  static std::pair<int, int> new_pair() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    return {ends[0], ends[1]};
  }
  void make_room(int bytes) const {
    EXPECT_EQ(setsockopt(ends_.first, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
  }

  const std::pair<int, int> ends_;  // of the connection, of the client
  const Descriptor client_;
  Shared shared_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Http1Connection> connection_;
};

/// More than holds back the next piece, and little enough to leave in one write.
std::string large_piece() { return std::string(kStreamWindow + (32 << 10), 'p'); }

// The end comes while more waits for the client than a stream may have under way; then all of that leaves at
// once.
TEST(Http1Stream, ItsEndFollowsWhatWaitedForTheClient) {
  SlowReader slow;
  ASSERT_TRUE(slow.stream.write(large_piece()));
  slow.take_turns();
  slow.stream.finish();
  slow.take_turns();
  slow.becomes_writable();
  const std::string answer = slow.received();
  EXPECT_GT(answer.size(), large_piece().size());
  EXPECT_TRUE(answer.ends_with("\r\n0\r\n\r\n"));
  EXPECT_FALSE(slow.is_closed());
}

TEST(Http1Stream, OneThatBreaksOffClosesItsConnectionOnceAllHasLeft) {
  SlowReader slow;
  ASSERT_TRUE(slow.stream.write(large_piece()));
  slow.take_turns();
  slow.stream = Stream();
  slow.take_turns();
  EXPECT_FALSE(slow.is_closed());
  slow.becomes_writable();
  EXPECT_TRUE(slow.is_closed());
  const std::string answer = slow.received();
  EXPECT_GT(answer.size(), large_piece().size());
  EXPECT_FALSE(answer.ends_with("0\r\n\r\n"));
}

}  // namespace
}  // namespace trireme::http
