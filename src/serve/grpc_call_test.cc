// Calls over real sockets: messages, statuses, compression, deadlines, streams, leaving and hostile clients,
// drain.
#include "serve/grpc_call.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "base/guarded.h"
#include "serve/http2_connection.h"
#include "serve/http_server.h"
#include "tests/http2_peer.h"

namespace trireme::serve {
namespace {

using namespace std::chrono_literals;
using tests::grpc_fields;
using tests::grpc_frame;
using tests::http2_frame;
using tests::http2_preface;
using tests::Http2PeerAnswer;
using tests::Http2Wire;

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

/// Answers each message with itself: at once (/t/echo), from another thread (/t/later), never (/t/never); or
/// throws (/t/throw).
class Echo final : public GrpcHandler {
 public:
  struct Counts {
    std::atomic<int> messages{0}, cancelled{0}, drained{0}, in_place{0}, alive{0};
    base::Guarded<std::vector<std::thread>> threads;
  };
  Echo(Counts& counts, std::shared_ptr<GrpcCall> call) : counts_(counts), call_(std::move(call)) {
    ++counts_.alive;
    kind_ = call_->path().substr(3);
  }
  ~Echo() override { --counts_.alive; }

  size_t aligned_at(std::string_view begin) const override { return begin.size() > 16 ? 16 : 0; }
  void on_message(HttpBytes&& message) override {
    ++counts_.messages;
    if (reinterpret_cast<uintptr_t>(message.data() + 16) % 64 == 0) ++counts_.in_place;
    if (kind_ == "throw") base::fail_invalid("50 % of \xc3\xa4 message\n");
    if (kind_ == "never") {
      if (++held_ == 4) call_->hold(true);
      return;
    }
    std::vector<HttpBodyPart> parts;
    parts.emplace_back(std::string(message.view()));
    if (kind_ == "echo") return call_->send(std::move(parts));
    counts_.threads.with([&](auto& threads) {
      threads.emplace_back([call = call_, parts]() mutable {
        call->send(std::move(parts));
        call->finish({}, {{"x-thread", "other"}});
      });
    });
  }
  void on_end() override {
    if (kind_ == "echo") call_->finish({});
  }
  void on_cancel() override { ++counts_.cancelled; }
  void on_drain() override {
    ++counts_.drained;
    if (kind_ == "never") call_->finish({GrpcCode::unavailable, "going"});
  }

 private:
  Counts& counts_;
  const std::shared_ptr<GrpcCall> call_;
  std::string kind_;
  int held_ = 0;
};

class Listener : public GrpcRoutes {
 public:
  explicit Listener(HttpServerOptions options = {}) {
    options.host = "127.0.0.1";
    service_.limits.stream_window_bytes = 200'000;
    service_.open = [this](HttpLoop& loop, Http2Session& session) {
      return std::make_shared<GrpcCall>(*this, session, loop.mailbox());
    };
    server = std::make_unique<HttpServer>(
        options,
        [this](HttpLoop& loop, int fd) { return std::make_unique<Http2Connection>(loop, fd, service_); },
        std::string_view());
  }
  ~Listener() override {
    server->stop();
    counts.threads.with([](auto& threads) {
      for (std::thread& t : threads) t.join();
    });
  }
  std::unique_ptr<GrpcHandler> open(const std::shared_ptr<GrpcCall>& call) override {
    if (call->path().substr(0, 3) != "/t/") return nullptr;
    return std::make_unique<Echo>(counts, call);
  }
  uint16_t port() const { return server->port(); }

  Echo::Counts counts;
  std::unique_ptr<HttpServer> server;

 private:
  Http2Service service_;
};

std::string status_of(const Http2PeerAnswer& answer) {
  const auto at = answer.fields.find("grpc-status");
  return at == answer.fields.end() ? "none" : at->second;
}

TEST(GrpcCall, MessagesOfEverySizeComeBack) {
  Listener listener;
  Http2Wire wire(listener.port());
  for (const char* path : {"/t/echo", "/t/later"}) {
    for (const size_t bytes : {0, 1, 4095, 4097, 16'384, 100'000, 700'000, 5'000'000}) {
      std::string message(bytes, 'x');
      for (size_t i = 0; i < bytes; i += 97) message[i] = static_cast<char>(i);
      const int32_t id = wire.peer.request(grpc_fields(path), grpc_frame(message));
      const Http2PeerAnswer& answer = wire.wait(id);
      EXPECT_EQ(status_of(answer), "0") << bytes;
      EXPECT_TRUE(answer.body == grpc_frame(message)) << bytes;
    }
  }
  EXPECT_GE(listener.counts.in_place, 8);  // from 4,096 bytes on
  EXPECT_TRUE(eventually([&] { return listener.counts.alive == 0; }));
}

TEST(GrpcCall, ManyStreamsAtOnceFromOtherThreads) {
  Listener listener;
  Http2Wire wire(listener.port());
  std::vector<int32_t> ids;
  for (int i = 0; i < 300; ++i)
    ids.push_back(wire.peer.request(grpc_fields("/t/later"), grpc_frame("message " + std::to_string(i))));
  for (int i = 0; i < 300; ++i) {
    const Http2PeerAnswer& answer = wire.wait(ids[static_cast<size_t>(i)]);
    EXPECT_EQ(answer.body, grpc_frame("message " + std::to_string(i)));
    EXPECT_EQ(answer.fields.at("x-thread"), "other");
  }
}

TEST(GrpcCall, StatusesAndRefusals) {
  Listener listener;
  Http2Wire wire(listener.port());
  const auto ask = [&](const tests::Http2PeerFields& fields,
                       const std::string& body) -> const Http2PeerAnswer& {
    return wire.wait(wire.peer.request(fields, body));
  };
  const Http2PeerAnswer& thrown = ask(grpc_fields("/t/throw"), grpc_frame("x"));
  EXPECT_EQ(status_of(thrown), "3");
  EXPECT_EQ(thrown.fields.at("grpc-message"), "50 %25 of %C3%A4 message%0A");
  EXPECT_EQ(status_of(ask(grpc_fields("/other/m"), grpc_frame("x"))), "12");
  EXPECT_EQ(status_of(ask(grpc_fields("/t/echo", {{"grpc-encoding", "snappy"}}), grpc_frame("x"))), "12");
  EXPECT_EQ(status_of(ask(grpc_fields("/t/echo"), grpc_frame("x", true))), "3");  // compressed by nothing
  EXPECT_EQ(status_of(ask(grpc_fields("/t/echo"), grpc_frame("x").substr(0, 4))), "13");
  EXPECT_EQ(status_of(ask(grpc_fields("/t/echo"), grpc_frame("long").substr(0, 7))), "13");
  EXPECT_EQ(status_of(ask(grpc_fields("/t/echo"), std::string("\0\xff\xff\xff\xff", 5))), "8");
  EXPECT_EQ(status_of(ask(grpc_fields("/t/echo", {{"grpc-timeout", "soon"}}), grpc_frame("x"))), "13");
  EXPECT_EQ(status_of(ask(grpc_fields("/t/echo", {{"x", std::string(30'000, 'x')}}), grpc_frame("x"))), "8");
  tests::Http2PeerFields page = grpc_fields("/t/echo");
  page.back().second = "text/html";
  EXPECT_EQ(ask(page, "x").fields.at(":status"), "415");
  page = grpc_fields("/t/echo");
  page.front().second = "GET";
  EXPECT_EQ(ask(page, "").fields.at(":status"), "405");
  EXPECT_EQ(status_of(ask(grpc_fields("/t/echo"), grpc_frame("x"))),
            "0");  // the connection has lived through it
}

TEST(GrpcCall, CompressedBothWays) {
  Listener listener;
  Http2Wire wire(listener.port());
  const std::string message(100'000, 'c');
  for (const auto& [name, coding] :
       {std::pair{"gzip", HttpCoding::gzip}, std::pair{"deflate", HttpCoding::deflate}}) {
    const auto fields = grpc_fields("/t/echo", {{"grpc-encoding", name}});
    const int32_t id =
        wire.peer.request(fields, grpc_frame(http_deflate(message, coding), true) + grpc_frame("plain"));
    const Http2PeerAnswer& answer = wire.wait(id);
    EXPECT_EQ(status_of(answer), "0");
    EXPECT_EQ(answer.fields.at("grpc-encoding"), name);
    const size_t first = answer.body.size() - grpc_frame("plain").size();
    ASSERT_EQ(answer.body[0], 1);
    EXPECT_TRUE(http_inflate(answer.body.substr(5, first - 5), 1 << 20).view() == message);
    EXPECT_EQ(answer.body.substr(first), grpc_frame("plain"));  // too small to be worth it
    const int32_t damaged = wire.peer.request(fields, grpc_frame("no such coding", true));
    EXPECT_EQ(status_of(wire.wait(damaged)), "3");
  }
}

TEST(GrpcCall, DeadlinesAndLeavingClientsCancel) {
  Listener listener;
  {
    Http2Wire wire(listener.port());
    const int32_t late =
        wire.peer.request(grpc_fields("/t/never", {{"grpc-timeout", "50m"}}), grpc_frame("x"));
    EXPECT_EQ(status_of(wire.wait(late)), "4");
    EXPECT_EQ(listener.counts.cancelled, 1);
    const int32_t left = wire.peer.request(grpc_fields("/t/never"), grpc_frame("x"));
    wire.send();
    EXPECT_TRUE(eventually([&] { return listener.counts.messages == 2; }));
    wire.peer.reset(left, 8);
    wire.send();
    EXPECT_TRUE(eventually([&] { return listener.counts.cancelled == 2; }));
    wire.peer.request(grpc_fields("/t/never"), grpc_frame("x"));
    wire.send();
    EXPECT_TRUE(eventually([&] { return listener.counts.messages == 3; }));
  }
  EXPECT_TRUE(eventually([&] { return listener.counts.cancelled == 3 && listener.counts.alive == 0; }));
}

// A handler that takes no more leaves what comes in the client's window.
TEST(GrpcCall, AHeldCallStopsItsClient) {
  Listener listener;
  Http2Wire wire(listener.port());
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += grpc_frame(std::string(1000, 'm'));
  const int32_t id = wire.peer.request(grpc_fields("/t/never"), bytes);
  while (wire.turn(200)) {
  }
  EXPECT_EQ(listener.counts.messages, 4);
  // The rest of the connection goes on.
  EXPECT_EQ(status_of(wire.wait(wire.peer.request(grpc_fields("/t/echo"), grpc_frame("x")))), "0");
  wire.peer.reset(id, 8);
  wire.send();
  EXPECT_TRUE(eventually([&] { return listener.counts.alive == 0; }));
}

TEST(GrpcCall, AnswersLargerThanTheClientsWindowWait) {
  Listener listener;
  Http2Wire slow(listener.port(), {.window_bytes = 1000, .reads_late = true});
  const int32_t id = slow.peer.request(grpc_fields("/t/echo"), grpc_frame(std::string(150'000, 'w')));
  while (slow.turn(300)) {
  }
  EXPECT_EQ(slow.peer.answer(id).body.size(), 1000u);
  Http2Wire other(listener.port());
  EXPECT_EQ(status_of(other.wait(other.peer.request(grpc_fields("/t/echo"), grpc_frame("x")))), "0");
  slow.peer.widen(id, 1 << 20);
  slow.peer.widen(0, 1 << 20);
  EXPECT_EQ(slow.wait(id).body.size(), 150'005u);
}

TEST(GrpcCall, HostileConnectionsEndAndOthersLive) {
  HttpServerOptions options;
  options.header_timeout = 200ms;
  Listener listener(options);
  Http2Wire good(listener.port());
  const auto ends = [&](std::string_view bytes) {
    Http2Wire bad(listener.port());
    bad.peer.output();  // only what is written by hand
    bad.send_raw(bytes);
    const bool ended = bad.wait_closed(3000);
    EXPECT_EQ(status_of(good.wait(good.peer.request(grpc_fields("/t/echo"), grpc_frame("x")))), "0");
    return ended;
  };
  std::string pings = http2_preface(), settings = http2_preface();
  for (int i = 0; i < 20'000; ++i) {
    pings += http2_frame(6, 0, 0, "12345678");
    settings += http2_frame(4, 0, 0, "");
  }
  EXPECT_TRUE(ends(pings));
  EXPECT_TRUE(ends(settings));
  EXPECT_TRUE(ends("GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_TRUE(ends("PRI * HTT"));  // and then nothing
  EXPECT_TRUE(ends(""));
  EXPECT_TRUE(ends(http2_preface() + std::string(3000, '\xff')));
}

TEST(GrpcCall, DrainAnswersWhatIsOpen) {
  auto listener = std::make_unique<Listener>();
  Http2Wire wire(listener->port()), idle(listener->port());
  const int32_t open = wire.peer.request(grpc_fields("/t/never"), grpc_frame("x"), false);
  wire.send();
  idle.turn();
  ASSERT_TRUE(eventually([&] { return listener->counts.messages == 1; }));
  std::atomic<bool> all{false};
  std::thread drain([&] { all = listener->server->drain(5s); });
  EXPECT_EQ(status_of(wire.wait(open)), "14");
  EXPECT_TRUE(wire.wait_closed());
  EXPECT_TRUE(idle.wait_closed());
  EXPECT_EQ(wire.peer.goaway_error(), 0);
  drain.join();
  EXPECT_TRUE(all);
  EXPECT_EQ(listener->counts.drained, 1);
}

TEST(GrpcCall, AnswersAfterTheServersEndGoNowhere) {
  auto listener = std::make_unique<Listener>();
  {
    Http2Wire wire(listener->port());
    for (int i = 0; i < 50; ++i) wire.peer.request(grpc_fields("/t/later"), grpc_frame("x"));
    wire.send();
    eventually([&] { return listener->counts.messages > 5; });
  }
  listener.reset();
}

TEST(GrpcStatus, MessagesAndTimeouts) {
  EXPECT_EQ(grpc_percent_encode("a b~\x7f%\x00" + std::string("\xff")), "a b~%7F%25%FF");
  EXPECT_EQ(grpc_timeout_ns("5S"), 5'000'000'000);
  EXPECT_EQ(grpc_timeout_ns("100m"), 100'000'000);
  EXPECT_EQ(grpc_timeout_ns("7n"), 7);
  EXPECT_EQ(grpc_timeout_ns("2H"), 7'200'000'000'000);
  EXPECT_GT(grpc_timeout_ns("99999999H"), 0);
  for (const char* bad : {"", "5", "S", "5x", "123456789S", "-1S", "1.5S"})
    EXPECT_EQ(grpc_timeout_ns(bad), -1) << bad;
}

}  // namespace
}  // namespace trireme::serve
