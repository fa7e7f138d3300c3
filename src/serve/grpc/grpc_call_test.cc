// Tests calls over real sockets: messages, statuses, compression, deadlines, streams, leaving and hostile
// clients, drain.
#include "serve/grpc/grpc_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "base/guarded.h"
#include "base/memory/memory_budget.h"
#include "http/http2/http2_connection.h"
#include "http/server.h"
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

constexpr size_t kMostBytes = 6'000'000;

/// Answers each message with itself: at once (/t/echo), from another thread (/t/later) or never (/t/never),
/// or throws (/t/throw). /t/one expects exactly one message.
class Echo final : public GrpcHandler {
 public:
  struct Counts {
    std::atomic<int> messages{0}, cancelled{0}, drained{0}, in_place{0}, alive{0};
    base::Guarded<std::vector<std::thread>> threads;
  };
  Echo(Counts& counts, std::shared_ptr<GrpcCall> call) : counts_(counts), call_(std::move(call)) {
    ++counts_.alive;
    kind_ = call_->field(":path").substr(3);
  }
  ~Echo() override { --counts_.alive; }

  size_t aligned_at(std::string_view begin) const override { return begin.size() > 16 ? 16 : 0; }
  bool takes_one() const override { return kind_ == "one"; }
  void on_message(http::Bytes&& message) override {
    ++counts_.messages;
    if (reinterpret_cast<uintptr_t>(message.data() + 16) % 64 == 0) ++counts_.in_place;
    if (kind_ == "throw") base::fail_invalid("50 % of \xc3\xa4 message\n");
    if (kind_ == "busy") base::fail(base::ErrorCode::unavailable, "too busy");
    if (kind_ == "long") base::fail_invalid(std::string(100'000, '\xc3'));
    if (kind_ == "never") {
      if (++held_ == 4) call_->hold(true);
      return;
    }
    if (kind_ == "one") return;  // answered at the end of the request
    std::vector<http::BodyPart> parts;
    parts.emplace_back(std::string(message.view()));
    if (kind_ == "echo") return call_->send(std::move(parts));
    counts_.threads.with([&](auto& threads) {
      threads.emplace_back([call = call_, parts = std::move(parts)]() mutable {
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
  explicit Listener(http::ServerOptions options = {}) {
    options.host = "127.0.0.1";
    service_.limits.stream_window_bytes = 200'000;
    service_.limits.sending = {.grace_ns = 1'500'000'000, .bytes_per_second = 5};
    service_.open = [this](http::Loop& loop, http::Http2Session& session, bool is_local) {
      return std::make_shared<GrpcCall>(*this, session, loop.mailbox(), kMostBytes, is_local);
    };
    server = std::make_unique<http::Server>(
        options,
        [this](http::Loop& loop, http::Descriptor fd) {
          return std::make_unique<http::Http2Connection>(loop, std::move(fd), service_);
        },
        std::string_view());
  }
  ~Listener() override {
    server->stop();
    counts.threads.with([](auto& threads) {
      for (std::thread& t : threads) t.join();
    });
  }
  std::unique_ptr<GrpcHandler> open(const std::shared_ptr<GrpcCall>& call) override {
    if (call->field(":path").substr(0, 3) != "/t/") return nullptr;
    return std::make_unique<Echo>(counts, call);
  }
  uint16_t port() const { return server->port(); }

  Echo::Counts counts;
  std::unique_ptr<http::Server> server;

 private:
  http::Http2Service service_;
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
  EXPECT_GE(listener.counts.in_place, 8);  // those of at least 4,096 bytes
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
  EXPECT_EQ(status_of(ask(grpc_fields("/t/echo"), grpc_frame("x", true))), "3");  // compressed; coding unset
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
            "0");  // the connection still works
}

TEST(GrpcCall, CompressedBothWays) {
  Listener listener;
  Http2Wire wire(listener.port());
  const std::string message(100'000, 'c');
  for (const auto& [name, coding] :
       {std::pair{"gzip", http::Coding::gzip}, std::pair{"deflate", http::Coding::deflate}}) {
    const auto fields = grpc_fields("/t/echo", {{"grpc-encoding", name}});
    const int32_t id = wire.peer.request(
        fields, grpc_frame(http::deflate_body(message, coding), true) + grpc_frame("plain"));
    const Http2PeerAnswer& answer = wire.wait(id);
    EXPECT_EQ(status_of(answer), "0");
    EXPECT_EQ(answer.fields.at("grpc-encoding"), name);
    const size_t first = answer.body.size() - grpc_frame("plain").size();
    ASSERT_EQ(answer.body[0], 1);
    EXPECT_TRUE(http::inflate_body(answer.body.substr(5, first - 5), 1 << 20).view() == message);
    EXPECT_EQ(answer.body.substr(first), grpc_frame("plain"));  // too small for compression
    const int32_t damaged = wire.peer.request(fields, grpc_frame("no such coding", true));
    EXPECT_EQ(status_of(wire.wait(damaged)), "3");
  }
}

TEST(GrpcCall, SmallMessagesThatInflateWithoutEndAreRefused) {
  Listener listener;
  Http2Wire wire(listener.port());
  for (const auto& [name, coding] :
       {std::pair{"gzip", http::Coding::gzip}, std::pair{"deflate", http::Coding::deflate}}) {
    const auto fields = grpc_fields("/t/echo", {{"grpc-encoding", name}});
    const auto status_for = [&, coding = coding](size_t bytes) {
      // A part of it cannot be compressed, so that its ratio is no reason for refusal.
      std::string plain(bytes, 'c');
      std::mt19937 rng(1);
      for (size_t i = 0; i < std::min<size_t>(bytes, 65'536); ++i) plain[i] = static_cast<char>(rng());
      const std::string message = http::deflate_body(plain, coding);
      return status_of(wire.wait(wire.peer.request(fields, grpc_frame(message, true))));
    };
    EXPECT_EQ(status_for(kMostBytes), "0");
    EXPECT_EQ(status_for(kMostBytes + 1), "8");
    EXPECT_EQ(status_for(50'000'000), "8");
    EXPECT_EQ(status_for(1000), "0");  // on the same connection
  }
  EXPECT_EQ(listener.counts.messages, 4);
}

/// Refused because of the length in its prefix, before any of it is stored.
TEST(GrpcCall, LongMessagesAreRefusedBeforeTheyCome) {
  Listener listener;
  Http2Wire wire(listener.port());
  const std::string whole = grpc_frame(std::string(kMostBytes + 1, 'c'));
  EXPECT_EQ(status_of(wire.wait(wire.peer.request(grpc_fields("/t/echo"), whole.substr(0, 5)))), "8");
  const auto packed = grpc_fields("/t/echo", {{"grpc-encoding", "gzip"}});
  std::string head = whole.substr(0, 5);
  head[0] = 1;
  EXPECT_EQ(status_of(wire.wait(wire.peer.request(packed, head))), "8");
  EXPECT_EQ(status_of(wire.wait(wire.peer.request(grpc_fields("/t/echo"), grpc_frame("short")))), "0");
  EXPECT_EQ(listener.counts.messages, 1);
}

// Messages that are announced and do not come leave memory to those that do: while it is tight, it is taken
// only as bytes arrive.
TEST(GrpcCall, PromisesOfMessagesTakeLittleWhereMemoryIsTight) {
  Listener listener;
  base::MemoryBudget& memory = base::process_memory();
  const uint64_t refused = memory.refused();
  memory.set_limit(memory.used_bytes() + (int64_t{60} << 20));
  {
    Http2Wire wire(listener.port());
    const std::string begun = grpc_frame(std::string(kMostBytes, 'p')).substr(0, 6);
    for (int i = 0; i < 60; ++i) wire.peer.request(grpc_fields("/t/echo"), begun, false);
    const std::string message(100'000, 'm');
    const Http2PeerAnswer& answer = wire.wait(wire.peer.request(grpc_fields("/t/echo"), grpc_frame(message)));
    EXPECT_EQ(status_of(answer), "0");
    EXPECT_TRUE(answer.body == grpc_frame(message));
    EXPECT_EQ(memory.refused(), refused);
    EXPECT_TRUE(memory.is_tight());
  }
  memory.set_limit(INT64_MAX);
  EXPECT_TRUE(eventually([&] { return listener.counts.alive == 0; }));
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

// A refusal after the deadline states the deadline, whatever the reason; before it, the reason.
TEST(GrpcCall, TimesThatAreOverAreTheDeadlines) {
  Listener listener;
  Http2Wire wire(listener.port());
  const auto status_for = [&](const char* path, const char* timeout) {
    return status_of(
        wire.wait(wire.peer.request(grpc_fields(path, {{"grpc-timeout", timeout}}), grpc_frame("x"))));
  };
  EXPECT_EQ(status_for("/t/echo", "0m"), "4");
  EXPECT_EQ(listener.counts.messages, 0);
  EXPECT_EQ(status_for("/t/busy", "1n"), "4");
  EXPECT_EQ(status_for("/t/busy", "1H"), "14");
}

// Clients refuse answers with long fields, and nghttp2 does not send them, so the message is shortened.
TEST(GrpcCall, LongRefusalsAreCut) {
  Listener listener;
  Http2Wire wire(listener.port());
  const auto& answer = wire.wait(wire.peer.request(grpc_fields("/t/long"), grpc_frame("x")));
  EXPECT_EQ(status_of(answer), "3");
  EXPECT_LE(answer.fields.at("grpc-message").size(), 4200u);
  EXPECT_EQ(grpc_percent_encode(std::string(4097, 'a')), std::string(4096, 'a') + "...");
  EXPECT_EQ(grpc_percent_encode(std::string(4096, 'a')), std::string(4096, 'a'));
  // Characters are never split.
  const std::string cut = grpc_percent_encode("a" + std::string(1500, '\xc3') + "z");
  EXPECT_EQ(cut.substr(cut.size() - 3), "...");
  std::string text = "b";
  for (int i = 0; i < 1000; ++i) text += "\xc3\xa4";
  const std::string pairs = grpc_percent_encode(text);
  EXPECT_EQ((pairs.size() - 1 - 3) % 6, 0u);
}

TEST(GrpcCall, AnswersInACodingThatTheClientReads) {
  Listener listener;
  Http2Wire wire(listener.port());
  const std::string text(10'000, 'c'), message = http::deflate_body(text, http::Coding::gzip);
  const auto coding_for = [&](const char* accepted) {
    tests::Http2PeerFields fields = {{"grpc-encoding", "gzip"}};
    if (accepted != nullptr) fields.emplace_back("grpc-accept-encoding", accepted);
    const auto& answer =
        wire.wait(wire.peer.request(grpc_fields("/t/echo", fields), grpc_frame(message, true)));
    const auto at = answer.fields.find("grpc-encoding");
    const bool is_plain = answer.body == grpc_frame(text);
    EXPECT_EQ(is_plain, at == answer.fields.end());
    return at == answer.fields.end() ? std::string("none") : at->second;
  };
  EXPECT_EQ(coding_for(nullptr), "gzip");
  EXPECT_EQ(coding_for("identity"), "none");
  EXPECT_EQ(coding_for("identity,deflate"), "none");
  EXPECT_EQ(coding_for("identity, deflate , gzip"), "gzip");
  EXPECT_EQ(coding_for("x-gzip"), "none");
}

// A call whose message is begun and not continued is ended; a message that arrives slowly is not.
TEST(GrpcCall, MessagesLeftHalfAreGivenUp) {
  Listener listener;
  Http2Wire wire(listener.port());
  const std::string frame = grpc_frame(std::string(10, 's'));
  const int32_t slow = wire.peer.request(grpc_fields("/t/echo"), frame.substr(0, 5), false);
  for (size_t i = 5; i < frame.size(); ++i) {
    wire.send();
    std::this_thread::sleep_for(200ms);
    wire.peer.more(slow, frame.substr(i, 1), i + 1 == frame.size());
  }
  EXPECT_EQ(status_of(wire.wait(slow)), "0");
  const int32_t half = wire.peer.request(grpc_fields("/t/echo"), frame.substr(0, 9), false);
  EXPECT_EQ(status_of(wire.wait(half)), "4");
  EXPECT_EQ(listener.counts.cancelled, 1);
}

// Calls also end if bytes arrive too slowly, or if a request does not arrive or does not end. A stream may be
// silent between messages.
TEST(GrpcCall, MessagesThatTrickleAreGivenUp) {
  Listener listener;
  Http2Wire wire(listener.port());
  const int32_t silent = wire.peer.request(grpc_fields("/t/never"), grpc_frame("x"), false);
  const int32_t nothing = wire.peer.request(grpc_fields("/t/one"), "", false);
  const int32_t endless = wire.peer.request(grpc_fields("/t/one"), grpc_frame("x"), false);
  const int32_t trickle =
      wire.peer.request(grpc_fields("/t/echo"), grpc_frame(std::string(200, 's')).substr(0, 5), false);
  for (int i = 0; i < 100 && !wire.peer.answer(trickle).has_closed; ++i) {
    wire.peer.more(trickle, "s", false);
    while (wire.turn(400)) {  // a byte extends the deadline by 200 ms
    }
  }
  EXPECT_EQ(status_of(wire.peer.answer(trickle)), "4");
  EXPECT_EQ(status_of(wire.wait(nothing)), "4");
  EXPECT_EQ(status_of(wire.wait(endless)), "4");
  EXPECT_FALSE(wire.peer.answer(silent).has_closed);
}

// As over HTTP/1.1: an unused connection ends, and its client is told before.
TEST(GrpcCall, UnusedConnectionsEnd) {
  http::ServerOptions options;
  options.idle_timeout = 100ms;
  Listener listener(options);
  Http2Wire wire(listener.port()), open(listener.port());
  const int32_t waits = open.peer.request(grpc_fields("/t/never"), grpc_frame("x"), false);
  open.send();
  EXPECT_EQ(status_of(wire.wait(wire.peer.request(grpc_fields("/t/echo"), grpc_frame("x")))), "0");
  EXPECT_TRUE(wire.wait_closed());
  EXPECT_EQ(wire.peer.goaway_error(), 0);
  EXPECT_FALSE(open.peer.answer(waits).has_closed);
  open.peer.more(waits, "", true);
  open.turn(100);
  EXPECT_EQ(open.peer.goaway_error(), -1);
}

// If a client does not read answers, its requests are not read: they fill its window, not server memory.
TEST(GrpcCall, AClientThatDoesNotReadIsNotReadEither) {
  Listener listener;
  Http2Wire wire(listener.port(), {.window_bytes = 0, .reads_late = true});
  std::string bytes;
  for (int i = 0; i < 200; ++i) bytes += grpc_frame(std::string(100'000, 'u'));
  const int32_t id = wire.peer.request(grpc_fields("/t/echo"), bytes);
  while (wire.turn(200)) {
  }
  EXPECT_GE(listener.counts.messages, 40);
  EXPECT_LE(listener.counts.messages, 50);  // 4 MiB and the message that exceeds it
  EXPECT_EQ(status_of(wire.wait(wire.peer.request(grpc_fields("/t/throw"), grpc_frame("x")))), "3");
  wire.peer.widen(id, 1 << 30);
  wire.peer.widen(0, 1 << 30);
  EXPECT_EQ(wire.wait(id).body.size(), 200 * 100'005u);
  EXPECT_EQ(listener.counts.messages, 201);
}

// Messages for a handler that takes no more stay in the client's window.
TEST(GrpcCall, AHeldCallStopsItsClient) {
  Listener listener;
  Http2Wire wire(listener.port());
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += grpc_frame(std::string(1000, 'm'));
  const int32_t id = wire.peer.request(grpc_fields("/t/never"), bytes);
  while (wire.turn(200)) {
  }
  EXPECT_EQ(listener.counts.messages, 4);
  // Other calls of the connection continue.
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
  http::ServerOptions options;
  options.header_timeout = 200ms;
  Listener listener(options);
  Http2Wire good(listener.port());
  const auto ends = [&](std::string_view bytes) {
    Http2Wire bad(listener.port());
    bad.peer.output();  // discards it: only hand-written bytes are sent
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
